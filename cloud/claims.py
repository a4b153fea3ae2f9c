"""Commitments beside a real Nova: who is granted room on held hosts, and what slots hold then.

Slots are read from Headroom's ledger right after each call, and nothing is imported meanwhile.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Final, LiteralString

import psycopg

from cloud.api import Api, CallError, host_of, in_parallel
from cloud.bringup import stopped_compute
from cloud.layout import ZONES, Layout
from cloud.processes import Processes
from commitments.e2e.bodies import CONFIRMED, Change, ProjectChanges, change_body
from commitments.e2e.client import LiquidServer

Json = Any  # bodies keep the APIs' own shapes
Places = frozenset[tuple[str, str]]
"""Who is in the slots of which host: pairs of host and consumer."""
RESOURCE: Final = "hw_version_general_ram"
HELD_ZONE: Final = "az-a"
HELD_GIB: Final = 560
"""A host of 496 GiB in whole, and two slots of 32 GiB on the other host of the zone."""
BURST: Final = 48
CROWD: Final = 100
PLACES: Final = 90
"""Places for ``BURST_FLAVOR`` on empty hosts: 15 on each of two hosts in three zones."""
BURST_FLAVOR: Final = "g_c8_m32"
BURST_GIB: Final = 32
_BURST_THREADS: Final = 16

_ROOMS: Final = """
SELECT host.name, (room.effective_memory_bytes - room.committed_memory_bytes
                   - room.allocated_memory_bytes) >> 30, room.committed_memory_bytes >> 30
  FROM capacity_hostcapacity AS room JOIN hosts_host AS host ON host.id = room.host_id
 WHERE host.zone = %s AND room.committed_memory_bytes > 0 ORDER BY 2, 1
"""
_INSIDE: Final = """
SELECT host.name, vm.vm_uuid FROM capacity_reservationallocation AS vm
  JOIN capacity_reservation AS slot ON slot.id = vm.reservation_id AND slot.kind = 'committed'
  JOIN hosts_host AS host ON host.id = slot.target_host_id
"""
WRONG: Final = """
SELECT 'slot ' || slot.id || ' blocks ' || slot.blocked_memory_bytes
  FROM capacity_reservation AS slot
 WHERE slot.kind = 'committed' AND slot.blocked_memory_bytes <> greatest(0, slot.memory_bytes - (
       SELECT coalesce(sum(vm.memory_bytes), 0) FROM capacity_reservationallocation AS vm
        WHERE vm.reservation_id = slot.id))
 UNION ALL
SELECT host.name || ' counts ' || room.committed_memory_bytes || ' held'
  FROM capacity_hostcapacity AS room JOIN hosts_host AS host ON host.id = room.host_id
 WHERE room.committed_memory_bytes <> (
       SELECT coalesce(sum(slot.blocked_memory_bytes), 0) FROM capacity_reservation AS slot
        WHERE slot.kind = 'committed' AND slot.target_host_id = host.id)
 UNION ALL
SELECT host.name || ' counts ' || room.allocated_memory_bytes || ' allocated'
  FROM capacity_hostcapacity AS room JOIN hosts_host AS host ON host.id = room.host_id
 WHERE room.allocated_memory_bytes <> (
       SELECT coalesce(sum(held.used), 0) * 1048576 FROM placement_allocation AS held
         JOIN placement_resource_class AS class ON class.id = held.resource_class_id
         JOIN placement_provider AS provider ON provider.id = held.provider_id
        WHERE class.name = 'MEMORY_MB' AND provider.name = host.name)
    OR room.allocated_memory_bytes + room.committed_memory_bytes + room.failover_memory_bytes
       + room.in_flight_memory_bytes > room.effective_memory_bytes
"""
_IN_FLIGHT: Final = "SELECT vm_uuid FROM capacity_reservation WHERE kind = 'in_flight'"


@dataclass(slots=True, kw_only=True)
class Claims:
    """A cloud whose servers are gone, with a project that commits and one that does not.

    Attributes:
        host: The host that is held in whole.
        other: The other host of its zone that holds slots.
        server: The owner's server, as Nova described it last.
    """

    layout: Layout
    processes: Processes
    database_url: str
    flavors: Mapping[str, str]
    image: str
    owner: Api
    stranger: Api
    host: str = ""
    other: str = ""
    server: Json = None
    committed: dict[str, int] = field(default_factory=dict)

    def rows(self, query: LiteralString, *values: object) -> list[tuple[Any, ...]]:
        """Return rows of Headroom's database."""
        with psycopg.connect(self.database_url) as connection:
            return connection.execute(query, values).fetchall()

    def commit(self, zone: str, amount_gib: int) -> None:
        """Let the owner hold this much in a zone, over the API that Limes uses.

        Raises:
            CallError: It is refused.
        """
        before = self.committed.pop(zone, 0)
        changes = []
        if before:
            changes.append(_change(zone, before, CONFIRMED, None))
        if amount_gib:
            changes.append(_change(zone, amount_gib, None, CONFIRMED))
            self.committed[zone] = amount_gib
        liquid = LiquidServer(
            base_url=self.layout.url("headroom"), token=self.owner.connection.auth_token
        )
        project = ProjectChanges(
            project_id=self.owner.connection.current_project_id,
            changes=tuple(changes),
            confirmed_before_units=before,
            confirmed_after_units=amount_gib,
        )
        body = change_body(
            [project],
            zone=zone,
            resource=RESOURCE,
            info_version=liquid.info()["version"],
            expires_at=datetime.now(UTC) + timedelta(days=365),
        )
        if reason := liquid.change(body):
            raise CallError(f"{amount_gib} GiB in {zone} refused: {reason}")

    def boot(self, api: Api, flavor: str, **where: str) -> str:
        """Ask for a server and return its id."""
        wanted = {"name": flavor, "flavorRef": self.flavors[flavor], "imageRef": self.image}
        return api.boot({**wanted, **where})

    def owners(self, flavor: str) -> None:
        """Boot the owner's server on the held host."""
        wanted = self.boot(self.owner, flavor, availability_zone=HELD_ZONE, host=self.host)
        self.server = self.owner.wait(wanted, "ACTIVE")

    def refused(self) -> None:
        """Let the stranger ask for the held host.

        Raises:
            CallError: The server was built there.
        """
        wanted = self.boot(self.stranger, "g_c2_m8", availability_zone=HELD_ZONE, host=self.host)
        fault = self.stranger.wait(wanted, "ERROR")["fault"]["message"]
        if "No valid host" not in fault:
            raise CallError(f"refused for another reason: {fault}")
        self.delete(self.stranger, [wanted])

    def delete(self, api: Api, servers: Sequence[str]) -> None:
        """Delete servers and wait until they are gone."""
        for server in servers:
            api.nova("DELETE", f"/servers/{server}")
        in_parallel(api.wait_gone, servers)

    def check(self, *inside: tuple[str, str]) -> str:
        """Compare who is in slots with who should be, and all sums with what they count.

        Raises:
            CallError: They differ.
        """
        found: Places = frozenset(self.rows(_INSIDE))
        if found != frozenset(inside):
            raise CallError(f"in slots: {sorted(found)}, not {sorted(inside)}")
        if wrong := self.rows(WRONG):
            raise CallError("; ".join(text for (text,) in wrong[:3]))
        if flying := self.rows(_IN_FLIGHT):
            raise CallError(f"{len(flying)} rows in flight are left")
        return "in no slot" if not inside else f"in slots of {', '.join(h for h, _ in inside)}"

    def migration(self) -> str:
        """Return the consumer that holds what the server's last migration left behind."""
        listed = self.owner.nova("GET", f"/os-migrations?instance_uuid={self.server['id']}")
        latest = max(listed["migrations"], key=lambda one: int(one["id"]))
        return str(latest["uuid"])

    def wait_migrated(self) -> None:
        """Wait until Nova gave back what the last migration held; the server is ACTIVE before."""
        consumer = self.migration()
        self.processes.wait(
            f"migration {consumer} to end", lambda: not self.owner.allocations(consumer)
        )

    def target(self) -> str:
        """Return the host of the zone that the server is not on."""
        return self.other if host_of(self.server) == self.host else self.host


def _change(zone: str, amount_gib: int, old: str | None, new: str | None) -> Change:
    uuid = f"00000000-0000-4000-8000-{ZONES.index(zone):04d}{amount_gib:08d}"
    return Change(uuid=uuid, old_status=old, new_status=new, amount_units=amount_gib)


def _commit(claims: Claims) -> str:
    claims.commit(HELD_ZONE, HELD_GIB)
    rooms = claims.rows(_ROOMS, HELD_ZONE)
    if [free for _, free, _ in rooms][:1] != [0] or len(rooms) == 1:
        raise CallError(f"no host is held in whole, or not two are held: {rooms}")
    claims.host, claims.other = rooms[0][0], rooms[1][0]
    return ", ".join(f"{host} holds {held} GiB, {free} free" for host, free, held in rooms)


def _refused(claims: Claims) -> str:
    claims.refused()
    return f"a stranger's server for {claims.host} found no valid host; {claims.check()}"


def _elsewhere(claims: Claims) -> str:
    wanted = claims.boot(claims.stranger, "g_c2_m8", availability_zone=HELD_ZONE)
    landed = host_of(claims.stranger.wait(wanted, "ACTIVE"))
    if landed == claims.host:
        raise CallError(f"the stranger's server is on {landed}")
    text = f"the same, not bound to it, is on {landed}, {claims.check()}"
    claims.delete(claims.stranger, [wanted])
    return text


def _own(claims: Claims) -> str:
    claims.owners("g_c2_m8")
    return f"the owner's is {claims.check((claims.host, claims.server['id']))}"


def _again(claims: Claims) -> str:
    claims.delete(claims.owner, [claims.server["id"]])
    text = f"deleted: {claims.check()}"
    claims.refused()
    claims.owners("g_c2_m8")
    inside = claims.check((claims.host, claims.server["id"]))
    return f"{text}; a stranger's is refused; booted anew: {inside}"


def _live_migrations(claims: Claims) -> str:
    said = []
    for _ in range(2):
        start, target = host_of(claims.server), claims.target()
        body = {"host": target, "block_migration": "auto"}
        claims.owner.act(claims.server["id"], "os-migrateLive", body)
        claims.server = claims.owner.wait(claims.server["id"], "ACTIVE", left=start)
        claims.wait_migrated()
        said.append(claims.check((target, claims.server["id"])))
    return ", then ".join(said)


def _verified(claims: Claims, action: str, body: Json, end: str) -> str:
    """Move the server, look at slots while both hosts are held, and confirm or revert it."""
    api, vm = claims.owner, claims.server["id"]
    start = host_of(claims.server)
    api.act(vm, action, body)
    moved = host_of(api.wait(vm, "VERIFY_RESIZE"))
    both = claims.check((start, claims.migration()), (moved, vm))
    api.act(vm, end)
    claims.server = api.wait(vm, "ACTIVE")
    claims.wait_migrated()
    return f"meanwhile {both}; {end}: {claims.check((host_of(claims.server), vm))}"


def _cold_reverted(claims: Claims) -> str:
    return _verified(claims, "migrate", {"host": claims.target()}, "revertResize")


def _cold_confirmed(claims: Claims) -> str:
    return _verified(claims, "migrate", {"host": claims.target()}, "confirmResize")


def _resized(claims: Claims) -> str:
    return _verified(claims, "resize", {"flavorRef": claims.flavors["g_c4_m16"]}, "confirmResize")


def _evacuated(claims: Claims) -> str:
    api, vm, start = claims.owner, claims.server["id"], host_of(claims.server)
    with stopped_compute(claims.layout, claims.processes, api, start):
        claims.server = api.evacuate(claims.server)
        moved = host_of(claims.server)
        both = claims.check((start, vm), (moved, vm))
    return f"{both}; {start} started again: {claims.check((moved, vm))}"


def _deleted_twice(claims: Claims) -> str:
    vm = claims.server["id"]
    paths = [("compute", f"/servers/{vm}")] * 2 + [("placement", f"/allocations/{vm}")] * 2
    in_parallel(
        lambda path: claims.owner.call(path[0], "DELETE", path[1], good=(204, 404, 409)), paths
    )
    claims.owner.wait_gone(vm)
    return f"by Nova and by hand, twice each: {claims.check()}"


def _given_up(claims: Claims) -> str:
    for zone in tuple(claims.committed):
        claims.commit(zone, 0)
    return f"no slot is left; {claims.check()}"


def _burst(claims: Claims, count: int = BURST, places: int = PLACES) -> str:
    """Boot many servers of the stranger at once; as many must run as there are places.

    Raises:
        CallError: More or fewer run, they take too long, or the ledger is wrong then.
    """
    started = time.monotonic()
    try:
        booted = in_parallel(
            lambda _: claims.boot(claims.stranger, BURST_FLAVOR),
            range(count),
            threads=_BURST_THREADS,
        )
        ended = partial(_ended, claims)
        claims.processes.wait(
            f"{count} servers", lambda: len(ended("ACTIVE")) + len(ended("ERROR")) == len(booted)
        )
        running = len(ended("ACTIVE"))
        text = f"{running} of {count} servers run after {time.monotonic() - started:.0f} s"
        if running != min(count, places):
            raise CallError(f"{text}, but there were {places} places")
        inside = claims.check()
    finally:
        claims.delete(claims.stranger, _ended(claims))
    return f"{text}, {places} places, {inside}, no row in flight; deleted: {claims.check()}"


def _ended(claims: Claims, status: str = "") -> list[str]:
    """Return the stranger's servers that have a status, or all; details would ask Neutron too."""
    wanted = f"&status={status}" if status else ""
    listed = claims.stranger.nova("GET", f"/servers?limit=1000{wanted}")["servers"]
    return [one["id"] for one in listed]


def _crowd(claims: Claims) -> str:
    slots = BURST // len(ZONES)
    for zone in ZONES:
        claims.commit(zone, slots * BURST_GIB)
    try:
        text = _burst(claims, CROWD, PLACES - BURST)
    finally:
        given_up = _given_up(claims)
    return f"{BURST} of {PLACES} places held; {text}; {given_up}"


COMMITTED_STEPS: Final[Mapping[str, Callable[[Claims], str]]] = {
    "a host is held in whole": _commit,
    "a stranger on the held host": _refused,
    "a stranger anywhere": _elsewhere,
    "the owner on the held host": _own,
    "deleted and booted at once": _again,
    "live migration of the owner's": _live_migrations,
    "cold migration of it, reverted": _cold_reverted,
    "cold migration of it, confirmed": _cold_confirmed,
    "resize of it, confirmed": _resized,
    "evacuation of it": _evacuated,
    "deletion of it, doubled": _deleted_twice,
    "the commitment is given up": _given_up,
    "48 at once": _burst,
    "100 at once, held hosts": _crowd,
}
ASKED_STEPS: Final[Mapping[str, Callable[[Claims], str]]] = {
    "48 at once, scheduler asked": _burst,
}
