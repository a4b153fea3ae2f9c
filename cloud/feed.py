"""The feed beside a real Nova: what is done in the cloud shows in Headroom, told or found out."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, LiteralString

import psycopg

from cloud.api import Api, CallError, host_of, in_parallel
from cloud.bringup import serve_headroom, stopped_compute
from cloud.catalog import IMAGE
from cloud.claims import WRONG
from cloud.configs import message_url
from cloud.layout import Layout, openstack_variables
from cloud.processes import Processes
from cloud.region import manage
from hosts.clients.cloud import ENVIRONMENT

Json = Any  # bodies keep the APIs' own shapes
FLAVOR: Final = "g_c2_m8"
SERVERS: Final = 4
TEST_AGGREGATE: Final = "hosts-under-test"
_PATIENCE_SECONDS: Final = 90.0
_POLL_SECONDS: Final = 0.1

_VM: Final = "SELECT 1 FROM hosts_instance WHERE openstack_id = %s"
VM_ON: Final = """
SELECT 1 FROM hosts_instance AS vm JOIN hosts_host AS host ON host.id = vm.host_id
 WHERE vm.openstack_id = %s AND host.service_host = %s AND vm.status = 'ACTIVE'
"""
NO_VM: Final = "SELECT 1 WHERE NOT EXISTS (SELECT FROM hosts_instance)"
_HOST_IS: Final = "SELECT 1 FROM hosts_host WHERE service_host = %s AND state = %s"
_LISTENS: Final = "SELECT 1 FROM journal_heartbeat WHERE name = 'listener'"
FOLLOWED: Final = """
SELECT 1 FROM hosts_feedpass WHERE kind = 'changes' AND listed_at > %s::timestamptz
"""
#: No user of this cloud has the role that may order this over HTTP.
_ORDER: Final = """
from hosts.models import Maintenance
from hosts.services.host_orders import HostOrder, change_host
from journal.actors import Actor
actor = Actor(name="cloud")
order = HostOrder(maintenance=Maintenance("{maintenance}"), maintenance_reason="to see it empty")
change_host("{host}", order, actor=actor, request_id="cloud", reason="to see it empty")
"""
_EVICT: Final = """
from commitments.services.evicting import evict_slots
from journal.clock import database_now
evict_slots("{host}", reason="to see it empty", actor=actor, request_id="cloud", now=database_now())
"""
_NAME: Final = "SELECT name FROM hosts_host WHERE service_host = %s"
_ELSEWHERE: Final = """
SELECT 1 FROM hosts_instance AS vm JOIN hosts_host AS host ON host.id = vm.host_id
 WHERE vm.openstack_id = %s AND host.service_host <> %s
"""
_EMPTIED: Final = """
SELECT 1 FROM hosts_eviction AS eviction JOIN hosts_host AS host ON host.id = eviction.host_id
 WHERE host.name = %s AND eviction."end" = 'succeeded'
"""
_NOW: Final = "SELECT clock_timestamp()::text"
FLAVOR_IS: Final = "SELECT 1 FROM hosts_flavor WHERE name = %s"
_AGGREGATE_HAS: Final = "SELECT 1 FROM hosts_aggregate WHERE name = %s AND %s = ANY (host_names)"


@dataclass(slots=True, kw_only=True)
class Feed:
    """A cloud without servers, and a Headroom that is to follow it.

    Attributes:
        environ: Environment of Headroom's processes.
        servers: Servers of these steps by id, as Nova described them last.
        leaving: The compute service that leaves for good.
    """

    layout: Layout
    processes: Processes
    environ: Mapping[str, str]
    api: Api
    flavors: Mapping[str, str]
    image: str
    servers: dict[str, Json] = field(default_factory=dict)
    leaving: str = ""

    def seen(self, what: str, query: LiteralString, *values: object) -> float:
        """Wait until a query finds something; return after how many seconds.

        Raises:
            CallError: It does not, with what was waited for.
        """
        began = time.monotonic()
        with psycopg.connect(self.environ["DATABASE_URL"], autocommit=True) as connection:
            while not connection.execute(query, values).fetchone():
                if time.monotonic() - began > _PATIENCE_SECONDS:
                    raise CallError(f"Headroom does not see {what}")
                time.sleep(_POLL_SECONDS)
        return time.monotonic() - began

    def now(self) -> str:
        """Return the time of Headroom's database, as it writes it."""
        with psycopg.connect(self.environ["DATABASE_URL"]) as connection:
            (text,) = connection.execute(_NOW).fetchone() or ("",)
        return str(text)

    def gone(self, server_id: str) -> float:
        """Wait until there is no row of a VM."""
        return self.seen(
            f"that {server_id} is deleted", "SELECT 1 WHERE NOT EXISTS (" + _VM + ")", server_id
        )

    def name_of(self, service_host: str) -> str:
        """Return what Headroom calls the host of a nova-compute."""
        with psycopg.connect(self.environ["DATABASE_URL"]) as connection:
            (text,) = connection.execute(_NAME, [service_host]).fetchone() or ("",)
        return str(text)

    def order(self, maintenance: str, host: str, *, evicts: bool = False) -> None:
        """Order a maintenance of a host at Headroom, and that it becomes empty."""
        words = [_ORDER.format(host=host, maintenance=maintenance)]
        if evicts:
            words.append(_EVICT.format(host=host))
        manage(self.layout, self.environ, "shell", "-c", "\n".join(words))

    def is_enabled(self, service_host: str) -> bool:
        """Return whether Nova gives new servers to a host."""
        services = self.api.compute_services()
        return any(one["host"] == service_host and one["status"] == "enabled" for one in services)

    def sums(self) -> str:
        """Return that the ledger's sums are right.

        Raises:
            CallError: They are not.
        """
        with psycopg.connect(self.environ["DATABASE_URL"]) as connection:
            if wrong := connection.execute(WRONG).fetchall():
                raise CallError(f"the ledger is wrong: {wrong[:3]}")
        return "sums of the ledger are right"


def _connect(feed: Feed) -> str:
    said = manage(feed.layout, feed.environ, "connect", "--yes")
    _, found, cloud = said.partition("This is your cloud")
    if not found:
        raise CallError("connect did not come to its end")
    feed.seen("that no VM of the import is there any more", NO_VM)
    return f"{cloud.count('az-')} lines about zones, and no VM of the import is left"


def feed_variables(layout: Layout) -> dict[str, str]:
    """Return the settings of a Headroom that follows the cloud as its administrator."""
    return {
        **openstack_variables(layout),
        "HEADROOM_FEED__CLOUD": ENVIRONMENT,
        "HEADROOM_FEED__MOVES_VMS": "true",
        "HEADROOM_FEED__ONBOARDS_HOSTS": "true",
        "HEADROOM_FEED__OFFBOARDS_HOSTS": "true",
        "HEADROOM_FEED__TEST_AGGREGATE": TEST_AGGREGATE,
        "HEADROOM_FEED__TEST_FLAVOR": FLAVOR,
        "HEADROOM_FEED__TEST_IMAGE": IMAGE,
        # Its hosts are listed sooner than a minute after they registered.
        "HEADROOM_FEED__HOSTS_INTERVAL_SECONDS": "10",
        "HEADROOM_LISTENER__TRANSPORT_URL": message_url(layout),
        "HEADROOM_LISTENER__METRICS_PORT": "0",
    }


def _start(feed: Feed) -> str:
    feed.processes.stop("beat")
    feed.processes.stop("worker")
    env = {**feed.environ, **feed_variables(feed.layout)}
    serve_headroom(feed.layout, feed.processes, env, ("worker", "beat", "listener"))
    now = feed.now()
    heard = feed.seen("a listener", _LISTENS)
    followed = feed.seen("changes", FOLLOWED, now)
    return f"listening after {heard:.1f} s, changes followed after {heard + followed:.1f} s"


def _boots(feed: Feed) -> str:
    def boot(number: int) -> Json:
        wanted = {
            "name": f"followed-{number}",
            "flavorRef": feed.flavors[FLAVOR],
            "imageRef": feed.image,
        }
        return feed.api.wait(feed.api.boot(wanted), "ACTIVE")

    for server in in_parallel(boot, range(SERVERS)):
        feed.servers[server["id"]] = server
    slowest = max(
        feed.seen(f"{server['name']} on {host_of(server)}", VM_ON, server_id, host_of(server))
        for server_id, server in feed.servers.items()
    )
    return f"{SERVERS} servers, the last {slowest:.1f} s after Nova said so; {feed.sums()}"


def _migration(feed: Feed) -> str:
    server = next(iter(feed.servers.values()))
    feed.api.act(server["id"], "os-migrateLive", {"host": None, "block_migration": "auto"})
    moved = feed.api.wait(server["id"], "ACTIVE", left=host_of(server))
    feed.servers[server["id"]] = moved
    seconds = feed.seen(f"it on {host_of(moved)}", VM_ON, moved["id"], host_of(moved))
    return f"{host_of(server)} to {host_of(moved)}, after {seconds:.1f} s; {feed.sums()}"


def _catalog(feed: Feed) -> str:
    api, host = feed.api, host_of(next(iter(feed.servers.values())))
    flavor = {"name": "g_followed", "vcpus": 3, "ram": 12288, "disk": 20}
    api.nova("POST", "/flavors", {"flavor": flavor})
    flavor_seconds = feed.seen("the flavor", FLAVOR_IS, flavor["name"])
    made = api.nova("POST", "/os-aggregates", {"aggregate": {"name": "followed"}})["aggregate"]
    path = f"/os-aggregates/{made['id']}/action"
    api.nova("POST", path, {"add_host": {"host": host}})
    seconds = feed.seen("the aggregate", _AGGREGATE_HAS, "followed", host)
    api.nova("POST", path, {"remove_host": {"host": host}})
    api.nova("DELETE", f"/os-aggregates/{made['id']}")
    return f"a flavor after {flavor_seconds:.1f} s, a host's aggregate after {seconds:.1f} s"


def _evacuation(feed: Feed) -> str:
    host = host_of(next(iter(feed.servers.values())))
    victims = [server for server in feed.servers.values() if host_of(server) == host]
    with stopped_compute(feed.layout, feed.processes, feed.api, host):
        down = feed.seen(f"that {host} is down", _HOST_IS, host, "down")
        for server in victims:
            after = feed.api.evacuate(server)
            feed.servers[server["id"]] = after
            feed.seen(f"it on {host_of(after)}", VM_ON, after["id"], host_of(after))
    up = feed.seen(f"that {host} is up", _HOST_IS, host, "up")
    return (
        f"{host} down after {down:.1f} s, {len(victims)} servers elsewhere, up after {up:.1f} s; "
        f"{feed.sums()}"
    )


def _emptying(feed: Feed) -> str:
    """Order that a host becomes empty, with a server that runs and one that does not."""
    host = host_of(next(iter(feed.servers.values())))
    for name in ("to-move", "to-move-stopped"):
        server_id = feed.api.boot(
            {
                "name": name,
                "flavorRef": feed.flavors[FLAVOR],
                "imageRef": feed.image,
                "host": host,
            }
        )
        feed.servers[server_id] = feed.api.wait(server_id, "ACTIVE")
        feed.seen(f"{name} on {host}", VM_ON, server_id, host)
    feed.api.act(server_id, "os-stop")
    feed.api.wait(server_id, "SHUTOFF")
    leaving = [one for one, server in feed.servers.items() if host_of(server) == host]
    name = feed.name_of(host)
    began = time.monotonic()
    feed.order("manual", name, evicts=True)
    for one in leaving:
        feed.seen(f"that {one} left {host}", _ELSEWHERE, one, host)
    feed.seen(f"that {host} is empty", _EMPTIED, name)
    seconds = time.monotonic() - began
    for one in leaving:
        feed.servers[one] = feed.api.server(one)
    if feed.is_enabled(host):
        raise CallError(f"Nova's service of {host} still takes servers")
    feed.order("", name)
    until = time.monotonic() + _PATIENCE_SECONDS
    while not feed.is_enabled(host):
        if time.monotonic() > until:
            raise CallError(f"Nova's service of {host} stays disabled")
        time.sleep(_POLL_SECONDS)
    return f"{len(leaving)} servers left {host} within {seconds:.0f} s; {feed.sums()}"


def _polling(feed: Feed) -> str:
    feed.processes.stop("listener")
    first, *others = feed.servers
    feed.api.nova("DELETE", f"/servers/{first}")
    feed.api.wait_gone(first)
    seconds = feed.gone(first)
    for server_id in others:
        feed.api.nova("DELETE", f"/servers/{server_id}")
    in_parallel(feed.api.wait_gone, others)
    for server_id in others:
        feed.gone(server_id)
    feed.servers.clear()
    return f"a deletion without a listener after {seconds:.1f} s; {feed.sums()}"


FEED_STEPS: Final[Mapping[str, Callable[[Feed], str]]] = {
    "connect": _connect,
    "feed and listener start": _start,
    "boots followed": _boots,
    "a live migration followed": _migration,
    "a flavor and an aggregate followed": _catalog,
    "an evacuation followed": _evacuation,
    "a host is emptied through Nova": _emptying,
    "deletions followed by polling": _polling,
}
