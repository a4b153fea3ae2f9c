"""What lies around one VM, read without its zone (spec failover, 17.8).

Rooms of hosts, and which reservations the VM may be able to join, are those of the process's host
table; rows are read of the VM, its reservations, those reservations, and their users only. The zone
planner works on that as it does on a zone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import chain

import numpy as np
import orjson
from django.conf import settings

from capacity.host_table import current_host_table
from failover.conf import FailoverConfig
from failover.domain.plan import BoolColumn, PlanOptions, ReuseOrder
from failover.domain.shelf import share_limit
from failover.domain.zone_columns import HostColumns, Int64Column, ZoneSnapshot
from failover.selectors.scheduler import ClassRows, class_rows
from failover.selectors.zone import (
    READY_WORDS,
    ZoneReading,
    ZoneReports,
    latest_cooldown,
    snapshot_of,
)
from hosts.domain.vm_list import ReportedVM, ReportingHost
from journal.statements import fetch_rows
from scheduling.table import HostTable
from scheduling.table_rows import ReservationRow

ZONE_OF_VM = """
SELECT zone, clock_timestamp() FROM hosts_host
 WHERE id = (SELECT host_id FROM hosts_instance WHERE openstack_id = %(uuid)s)
"""
AROUND_VM = """
SELECT failover_around_vm(%(uuid)s, %(trusts)s, %(now)s, %(latest)s, %(up)s, %(enabled)s,
                          %(harmless)s::text[])
"""
AROUND_SLOTS = "SELECT failover_around_slots(%(keys)s::bigint[], %(wide)s)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Vicinity:
    """One VM, with what a plan for it stands on.

    Attributes:
        vm_uuid: The VM.
        reading: Rows of the VM, its reservations and their users.
        snapshot: All hosts of its zone, and those rows.
        barred: Bit set of hosts that validation refused to it of late.
        table: Host table that the rooms are from.
        class_rows: What the scheduler needs to know of the VM's class.
        is_halted: Whether the zone's brake is on.
        is_known_short: Whether it is on record that the VM lacks reservations.
    """

    vm_uuid: str
    reading: ZoneReading
    snapshot: ZoneSnapshot
    barred: int
    table: HostTable
    class_rows: ClassRows
    is_halted: bool
    is_known_short: bool

    @property
    def vm(self) -> int:
        """Row of the VM; -1 if it needs no reservations and has none."""
        return self.snapshot.vm_row.get(self.vm_uuid, -1)

    def with_slots(self, keys: Sequence[int], *, is_wide: bool) -> Vicinity:
        """Return the same with further reservations and their users; rows that were there stay.

        Args:
            keys: The reservations.
            is_wide: Whether to read what these users share with others as well: what the rules
                forbid is known exactly then.
        """
        ((document,),) = fetch_rows(AROUND_SLOTS, {"keys": list(keys), "wide": is_wide})
        found, known = orjson.loads(document), {row[0] for row in self.reading.slots}
        reading = replace(
            self.reading,
            slots=self.reading.slots + [row for row in found["slots"] if row[0] not in known],
            members=self.reading.members + [row for row in found["members"] if row[1] not in known],
        )
        snapshot = _snapshot(reading, self.snapshot.hosts, self.vm_uuid)
        return replace(
            self,
            reading=reading,
            snapshot=replace(snapshot, slots_held=self.snapshot.slots_held),
        )


def zone_of_vm(vm_uuid: str) -> tuple[str, datetime] | None:
    """Return the zone of a VM's host and the time; None for a VM that the list puts on no host."""
    rows = fetch_rows(ZONE_OF_VM, {"uuid": vm_uuid})
    return rows[0] if rows else None


def load_vicinity(vm_uuid: str, config: FailoverConfig, *, now: datetime) -> Vicinity | None:
    """Return what a plan for a VM stands on; None for a VM that the list puts on no host.

    Nothing is locked; whoever writes looks again.

    Args:
        config: Requirements, and which source is believed about locations.
        now: The present, for stopped VMs and cooldowns.
    """
    asked = {
        "uuid": vm_uuid,
        "trusts": bool(config.trust_hypervisor_location),
        "now": now,
        "latest": latest_cooldown(now),
        **READY_WORDS,
    }
    ((document,),) = fetch_rows(AROUND_VM, asked)
    if document is None:
        return None
    around = orjson.loads(document)
    *columns, changed_at = around["vm"]
    reading = ZoneReading(
        zone=around["zone"],
        now=now,
        config=config,
        hosts=around["hosts"],
        vms=[(*columns, changed_at and datetime.fromisoformat(changed_at))],
        slots=around["slots"],
        members=around["members"],
        groups={vm_uuid: around["group"]} if around["group"] else {},
        reports=ZoneReports.of(
            [
                ReportingHost(
                    name=name,
                    vms=tuple(
                        ReportedVM(vm_uuid=vm_uuid, is_active=bool(one.get("active")))
                        for one in listed
                        if one.get("id") == vm_uuid
                    ),
                )
                for name, listed in around["reports"]
            ]
        ),
    )
    table = current_host_table()
    hosts = _zone_hosts(table, reading.zone)
    row_of = {key: row for row, key in enumerate(hosts.ids.tolist())}
    return Vicinity(
        vm_uuid=vm_uuid,
        reading=reading,
        snapshot=replace(_snapshot(reading, hosts, vm_uuid), slots_held=_slots_held(table, hosts)),
        barred=sum(1 << row_of[key] for key in around["barred"] if key in row_of),
        table=table,
        class_rows=class_rows([(columns[0], around["specs"])], [(columns[6], around["domain"])]),
        is_halted=around["is_halted"],
        is_known_short=around["is_known_short"],
    )


def _snapshot(reading: ZoneReading, hosts: HostColumns, vm_uuid: str) -> ZoneSnapshot:
    """Return the rows with the other users as VMs that nothing is decided about here.

    They count as seen on their hosts and not as listed, which the safeguard keeps as they are. The
    only compatibility class is the VM's.
    """
    snapshot = snapshot_of(reading, hosts)
    vms = snapshot.vms
    is_other = np.array([uuid != vm_uuid for uuid in vms.uuids], dtype=np.bool_)
    own = vms.class_code[~is_other].tolist()
    return replace(
        snapshot,
        vms=replace(
            vms,
            is_seen=vms.is_seen | is_other,
            class_code=is_other.astype(np.int32),
            classes=tuple(vms.classes[code] for code in own),
        ),
    )


def _slots_held(table: HostTable, hosts: HostColumns) -> Int64Column | None:
    """Return how many reservations hosts hold, where the choice of hosts depends on it."""
    if not settings.HEADROOM.failover.consolidate:
        return None
    held = table.reservations.failover_on
    return np.array([len(held.get(name, ())) for name in hosts.names], dtype=np.int64)


def _zone_hosts(table: HostTable, zone: str) -> HostColumns:
    code = table.zones.index(zone) if zone in table.zones else -1
    rows = np.flatnonzero((table.zone == code) & table.is_known)
    rows = rows[np.argsort(table.host_ids[rows], kind="stable")]
    return HostColumns(
        ids=table.host_ids[rows],
        names=tuple(map(table.names.__getitem__, rows.tolist())),
        racks=("",) * len(rows),
        is_ready=table.state_ok[rows],
        effective_memory_bytes=table.eff_memory_bytes[rows],
        effective_vcpus=table.eff_vcpus[rows],
        used_memory_bytes=table.alloc_memory_bytes[rows],
        used_vcpus=table.alloc_vcpus[rows],
        held_memory_bytes=table.committed_memory_bytes[rows] + table.in_flight_memory_bytes[rows],
        held_vcpus=table.committed_vcpus[rows] + table.in_flight_vcpus[rows],
        failover_memory_bytes=table.failover_memory_bytes[rows],
        failover_vcpus=table.failover_vcpus[rows],
    )


def open_slots(
    seen: Vicinity, stays: BoolColumn, hosts: BoolColumn, options: PlanOptions, *, is_wide: bool
) -> Iterator[int]:
    """Yield the reservations that the VM may be able to join as the table knows them, best first.

    Args:
        seen: The VM.
        stays: bool[A], memberships that count.
        hosts: bool[H], hosts that it may run on.
        options: The order of choice, and how many may share one.
        is_wide: Whether what the rules forbid is left to the planner: the table knows users by
            where the VM list says they run.
    """
    snapshot, order = seen.snapshot, options.reuse_order
    vms, row_of = snapshot.vms, snapshot.host_row
    least = int(vms.asked_memory_bytes[seen.vm]), int(vms.asked_vcpus[seen.vm])
    most = max(options.most_required, int(vms.required[seen.vm]))
    limit = share_limit(options.max_users, len(snapshot.hosts), most)
    closed, sharers = (set[int](), set[str]()) if is_wide else _closed(seen, stays)
    usable = {snapshot.hosts.names[row] for row in np.flatnonzero(hosts).tolist()}
    free = snapshot.hosts.free_memory_bytes().tolist()

    def rank(slot: ReservationRow) -> tuple[int, ...]:
        users, key = len(slot.vm_uuids), slot.reservation_id
        if order is ReuseOrder.FEWEST_USERS:
            return users, -free[row_of[slot.target_host]], key
        return (-users, key) if order is ReuseOrder.MOST_USERS else (key,)

    slots_of = seen.table.reservations.failover_of_size
    sizes = sorted(
        size
        for size in slots_of
        if size[0] == snapshot.zone and size[1] >= least[0] and size[2] >= least[1]
    )
    groups: Iterable[Iterable[ReservationRow]] = (slots_of[size] for size in sizes)
    if order is ReuseOrder.MOST_USERS:
        groups = (chain.from_iterable(groups),)
    for slots in groups:
        joinable = (
            slot
            for slot in slots
            if len(slot.vm_uuids) < limit and slot.is_ready and slot.target_host in usable
        )
        for slot in sorted(joinable, key=rank):  # few are asked for: the rules are looked at last
            if slot.reservation_id not in closed and sharers.isdisjoint(slot.vm_uuids):
                yield slot.reservation_id


def _closed(seen: Vicinity, stays: BoolColumn) -> tuple[set[int], set[str]]:
    """Return the reservations, and users of any, that the VM must not join, by the table (17.5).

    The reservations are on a host of its list (7.3) or have a user there; the users' own lists name
    the VM's host.
    """
    snapshot, members = seen.snapshot, seen.snapshot.members
    own = int(snapshot.vms.host[seen.vm])
    slots = np.unique(members.slot[stays & (members.vm == seen.vm)])
    beside = stays & (members.vm != seen.vm) & np.isin(members.slot, slots)
    listed = {*snapshot.slots.host[slots].tolist(), *members.joined_host[beside].tolist()}
    here = _near(seen, [own])
    users = {uuid for slot in here.values() for uuid in slot.vm_uuids}
    return {*here, *_near(seen, listed - {own, -1})}, users


def _near(seen: Vicinity, hosts: Iterable[int]) -> dict[int, ReservationRow]:
    """Return the reservations on some hosts, or with a user there."""
    table, index = seen.table, seen.table.reservations
    found: dict[int, ReservationRow] = {}
    for name in map(seen.snapshot.hosts.names.__getitem__, hosts):
        near = [index.failover_on.get(name, ())]
        near += map(index.failover_of_vm.of_key, table.instance_index.keys_on(table.row_of[name]))
        found |= {slot.reservation_id: slot for slots in near for slot in slots}
    return found
