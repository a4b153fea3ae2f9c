"""VMs on their way in a real Nova: where the VM list counts, both of their hosts are held."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

import psycopg

from cloud.api import CallError, host_of
from cloud.bringup import serve_headroom
from cloud.feed import FOLLOWED, VM_ON, Feed, feed_variables
from cloud.layout import FLAVORS
from cloud.processes import answers

Json = Any  # bodies keep the APIs' own shapes
SMALL: Final = "g_c2_m8"
LARGE: Final = "g_c8_m32"

HELD: Final = """
SELECT 1 FROM capacity_reservation AS held
  JOIN hosts_host AS host ON host.id = held.target_host_id
  JOIN capacity_hostcapacity AS room ON room.host_id = host.id
 WHERE held.kind = 'in_flight' AND held.creator = 'migration' AND held.vm_uuid = %s
   AND held.blocked_memory_bytes = %s AND room.in_flight_memory_bytes >= %s
   AND (host.service_host = %s) = %s
"""
COUNTED: Final = """
SELECT 1 FROM hosts_instance AS vm
  JOIN hosts_host AS host ON host.id = vm.host_id
  JOIN capacity_hostcapacity AS room ON room.host_id = host.id
 WHERE vm.openstack_id = %s AND host.service_host = %s AND vm.memory_bytes = %s
   AND room.allocated_memory_bytes >= vm.memory_bytes
"""
WRONG: Final = """
SELECT host.name || ' counts ' || room.allocated_memory_bytes || ' allocated and '
       || room.in_flight_memory_bytes || ' in flight'
  FROM capacity_hostcapacity AS room JOIN hosts_host AS host ON host.id = room.host_id
 WHERE room.allocated_memory_bytes <> (
       SELECT coalesce(sum(vm.memory_bytes), 0) FROM hosts_instance AS vm
        WHERE vm.host_id = host.id)
    OR room.in_flight_memory_bytes <> (
       SELECT coalesce(sum(held.blocked_memory_bytes), 0) FROM capacity_reservation AS held
        WHERE held.kind = 'in_flight' AND held.target_host_id = host.id)
"""
NOT_HELD: Final = """
SELECT 1 WHERE NOT EXISTS (
    SELECT FROM capacity_reservation
     WHERE kind = 'in_flight' AND creator = 'migration' AND vm_uuid = %s)
"""
COUNTED_ANEW: Final = """
SELECT 1 WHERE NOT EXISTS (
    SELECT FROM capacity_hostcapacity WHERE counted_from IS DISTINCT FROM 'instances')
"""


def _start(feed: Feed) -> str:
    """Have the VM list say what is taken, as where Placement is somebody else's."""
    for name in ("beat", "worker", "web"):
        feed.processes.stop(name)
    feed.environ = {
        **feed.environ,
        "HEADROOM_ALLOCATION_SOURCE": "instances",
        "HEADROOM_FEED__MIGRATIONS_INTERVAL_SECONDS": "1",
    }
    env = {**feed.environ, **feed_variables(feed.layout)}
    serve_headroom(feed.layout, feed.processes, env, ("web",))
    feed.processes.wait("Headroom", partial(answers, f"{feed.layout.url('headroom')}/healthz"))
    serve_headroom(feed.layout, feed.processes, env, ("worker", "beat"))
    counted = feed.seen("rooms counted from the VM list", COUNTED_ANEW)
    seconds = feed.seen("changes", FOLLOWED, feed.now())
    wanted = {"name": "moved", "flavorRef": feed.flavors[SMALL], "imageRef": feed.image}
    server = feed.api.wait(feed.api.boot(wanted), "ACTIVE")
    feed.servers[server["id"]] = server
    feed.seen("the server", VM_ON, server["id"], host_of(server))
    _is_counted(feed, server["id"], host_of(server), SMALL)
    return (
        f"rooms counted after {counted:.1f} s, followed after {seconds:.1f} s; a server on "
        f"{host_of(server)}; {_sums(feed)}"
    )


def _mover(feed: Feed) -> Json:
    """Return the server that moves, as Nova has it now.

    Raises:
        CallError: The first step made none.
    """
    for server_id in feed.servers:
        return feed.api.server(server_id)
    raise CallError("no server was booted that could be moved")


def _bytes(flavor: str) -> int:
    return next(one.memory_mib for one in FLAVORS if one.name == flavor) << 20


def _is_held(feed: Feed, server_id: str, host: str, flavor: str, *, there: bool) -> float:
    """Wait until room of a flavor is held for a server on a host, or on any other."""
    size, where = _bytes(flavor), host if there else f"another host than {host}"
    what = f"room of {flavor} held on {where}"
    return feed.seen(what, HELD, server_id, size, size, host, there)


def _is_counted(feed: Feed, server_id: str, host: str, flavor: str) -> None:
    what = f"the server with {flavor} counted on {host}"
    feed.seen(what, COUNTED, server_id, host, _bytes(flavor))


def _sums(feed: Feed) -> str:
    """Return that the rooms of all hosts are the sums of what is on and held on them.

    Raises:
        CallError: They are not.
    """
    with psycopg.connect(feed.environ["DATABASE_URL"]) as connection:
        if wrong := connection.execute(WRONG).fetchall():
            raise CallError("; ".join(text for (text,) in wrong[:3]))
    return "rooms are right"


def _live(feed: Feed) -> str:
    server = _mover(feed)
    server_id, source = server["id"], host_of(server)
    hold = feed.layout.live_hold_file
    hold.touch()
    try:
        feed.api.act(server_id, "os-migrateLive", {"host": None, "block_migration": "auto"})
        seconds = _is_held(feed, server_id, source, SMALL, there=False)
        _is_counted(feed, server_id, source, SMALL)
    finally:
        hold.unlink()
    target = host_of(feed.api.wait(server_id, "ACTIVE", left=source))
    _is_counted(feed, server_id, target, SMALL)
    free = feed.seen(f"{source} given back", NOT_HELD, server_id)
    return f"{target} held after {seconds:.1f} s, {source} free after {free:.1f} s; {_sums(feed)}"


def _waiting(feed: Feed, *, flavor: str, is_kept: bool) -> str:
    """Have Nova move the server to a host where it waits to be confirmed or reverted."""
    server = _mover(feed)
    server_id, source = server["id"], host_of(server)
    if flavor == SMALL:
        feed.api.act(server_id, "migrate")
    else:
        feed.api.act(server_id, "resize", {"flavorRef": feed.flavors[flavor]})
    target = host_of(feed.api.wait(server_id, "VERIFY_RESIZE"))
    _is_counted(feed, server_id, target, flavor)
    seconds = _is_held(feed, server_id, source, SMALL, there=True)
    feed.api.act(server_id, "confirmResize" if is_kept else "revertResize")
    after = feed.api.wait(server_id, "ACTIVE")
    _is_counted(feed, server_id, host_of(after), flavor if is_kept else SMALL)
    free = feed.seen("the other host given back", NOT_HELD, server_id)
    return (
        f"{source} held beside {target} after {seconds:.1f} s, now on {host_of(after)}, "
        f"the other free after {free:.1f} s; {_sums(feed)}"
    )


def _end(feed: Feed) -> str:
    server_id = _mover(feed)["id"]
    feed.api.nova("DELETE", f"/servers/{server_id}")
    feed.api.wait_gone(server_id)
    seconds = feed.gone(server_id)
    feed.servers.clear()
    return f"gone after {seconds:.1f} s; {_sums(feed)}"


MOVE_STEPS: Final[Mapping[str, Callable[[Feed], str]]] = {
    "the VM list counts": _start,
    "a live migration holds both hosts": _live,
    "a resize held, then reverted": partial(_waiting, flavor=LARGE, is_kept=False),
    "a cold migration held": partial(_waiting, flavor=SMALL, is_kept=True),
    "a resize held, then confirmed": partial(_waiting, flavor=LARGE, is_kept=True),
    "deletion of what moved": _end,
}
