"""Reading a zone as the columns that failover plans on (spec failover, 9.2 steps 1 and 2).

One statement per table and zone, in one snapshot of the database; nothing is read per VM.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

import numpy as np
from django.conf import settings
from django.db import connection, transaction

from failover.choices import SlotState
from failover.conf import FailoverConfig
from failover.domain.patterns import required_counts
from failover.domain.sizing import MIB
from failover.domain.zone_columns import (
    HostColumns,
    MemberColumns,
    SlotColumns,
    VmColumns,
    ZoneSnapshot,
)
from failover.models import FailoverPolicy
from failover.selectors.groups import largest_flavors
from failover.selectors.reports import ZoneReports, read_reports
from hosts.models import HostState, HostStatus, Maintenance

_Row = tuple[Any, ...]  # Any: columns of several types

HOST_COLUMNS = """
SELECT host.id, host.name, host.building_block,
       host.state = %(up)s AND host.status = %(enabled)s AND host.maintenance = ANY(%(harmless)s)
           AND coalesce(host.conditions->>'Ready', 'True') = 'True',
       room.effective_memory_bytes, room.effective_vcpus,
       room.allocated_memory_bytes, room.allocated_vcpus,
       room.committed_memory_bytes + room.in_flight_memory_bytes,
       room.committed_vcpus + room.in_flight_vcpus,
       room.failover_memory_bytes, room.failover_vcpus,
       host.hypervisor_type, host.conditions->>'HaEnabled' IS NOT DISTINCT FROM 'False'
  FROM hosts_host AS host JOIN capacity_hostcapacity AS room ON room.host_id = host.id
"""
SELECT_HOSTS = HOST_COLUMNS + " WHERE host.zone = %(zone)s ORDER BY host.id"

SLOT_COLUMNS = """
SELECT held.id, coalesce(known.name, held.uuid::text), held.target_host_id,
       held.memory_bytes, held.vcpus, held.is_ready IS TRUE, coalesce(known.state, 'active')
  FROM capacity_reservation AS held
  LEFT JOIN failover_failoverreservation AS known ON known.reservation_id = held.id
 WHERE held.kind = 'failover'
"""
SELECT_SLOTS = SLOT_COLUMNS + " AND held.zone = %(zone)s ORDER BY held.id"

MEMBER_COLUMNS = """
SELECT vm.id, vm.reservation_id, vm.vm_uuid, vm.vm_host_id, vm.validated_at IS NOT NULL,
       vm.memory_bytes, vm.vcpus
  FROM capacity_reservationallocation AS vm
  JOIN capacity_reservation AS held ON held.id = vm.reservation_id
 WHERE held.kind = 'failover'
"""
SELECT_MEMBERS = MEMBER_COLUMNS + " AND held.zone = %(zone)s ORDER BY vm.id"

VM_COLUMNS = """
SELECT vm.id, vm.openstack_id, vm.host_id, vm.memory_bytes, vm.vcpus, vm.flavor_name,
       vm.project_id, jsonb_hash_extended(vm.flavor_extra_specs, 0), vm.status,
       vm.nova_updated_at
  FROM hosts_instance AS vm
"""
SELECT_VMS = (
    VM_COLUMNS
    + """
  JOIN hosts_host AS host ON host.id = vm.host_id
 WHERE host.zone = %(zone)s
"""
)
SELECT_VMS_BY_UUID = VM_COLUMNS + " WHERE vm.openstack_id = ANY(%(uuids)s)"

SELECT_GROUPS = """
SELECT listed.member, grouped.openstack_id
  FROM hosts_servergroup AS grouped, unnest(grouped.members) AS listed(member)
 WHERE grouped.policy = 'anti-affinity'
 ORDER BY grouped.id
"""

READY_WORDS: Mapping[str, Any] = {
    "up": HostState.UP.value,
    "enabled": HostStatus.ENABLED.value,
    "harmless": [Maintenance.NONE.value, Maintenance.HA.value],
}

STOPPED = frozenset({"SHUTOFF", "STOPPED"})
NEVER_COVERED = frozenset(
    {"BUILD", "ERROR", "DELETED", "SOFT_DELETED", "SHELVED", "SHELVED_OFFLOADED"}
)


@dataclass(frozen=True, slots=True, order=True)
class ClassKey:
    """What the hosts of a VM depend on (spec failover, 17.5 "compatibility class").

    Attributes:
        flavor_name: Flavor.
        specs_hash: Hash of its extra specs as the VM has them.
        project_id: Project.
        server_group: Server group that keeps its VMs apart; empty without one.
        hypervisor_type: Type of the host it runs on, for flavors that do not say (16.6).
    """

    flavor_name: str
    specs_hash: int
    project_id: str
    server_group: str
    hypervisor_type: str


@dataclass(slots=True, kw_only=True)
class ZoneReading:
    """Rows of a zone as read, or of the part of it that a question is about.

    Attributes:
        zone: Availability zone.
        now: The present.
        config: Requirements, and which source is believed about locations.
        hosts: Rows of ``HOST_COLUMNS``.
        slots: Rows of ``SLOT_COLUMNS``.
        members: Rows of ``MEMBER_COLUMNS``; their reservations are among the slots.
        vms: Rows of ``VM_COLUMNS``.
        groups: VM -> server group that keeps its VMs apart.
        reports: What hosts say about their VMs.
        notes: Facts about the reading, for people.
    """

    zone: str
    now: datetime
    config: FailoverConfig
    hosts: list[_Row] = field(default_factory=list)
    slots: list[_Row] = field(default_factory=list)
    members: list[_Row] = field(default_factory=list)
    vms: list[_Row] = field(default_factory=list)
    groups: Mapping[str, str] = field(default_factory=dict)
    reports: ZoneReports = field(default_factory=ZoneReports)
    notes: dict[str, int] = field(default_factory=dict)


def failover_requirements() -> dict[str, int]:
    """Return flavor pattern -> required count, as the policies say."""
    return dict(FailoverPolicy.objects.values_list("flavor_pattern", "required_count"))


def failover_zones() -> list[str]:
    """Return the zones that have hosts or failover reservations, sorted; hosts need a zone."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT DISTINCT zone FROM hosts_host WHERE zone <> '' UNION "
            "SELECT DISTINCT zone FROM capacity_reservation WHERE kind = 'failover' AND zone <> ''"
        )
        return sorted(row[0] for row in cursor.fetchall())


def load_zone(zone: str, config: FailoverConfig, *, now: datetime) -> ZoneSnapshot:
    """Return a zone as columns, read in one snapshot of the database.

    Args:
        zone: Availability zone.
        config: Requirements, and which source is believed about locations.
        now: The present, for stopped VMs.
    """
    reading = ZoneReading(zone=zone, now=now, config=config)
    is_own = not connection.in_atomic_block
    with transaction.atomic():
        if is_own:
            with connection.cursor() as cursor:
                cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        _read(reading)
    return snapshot_of(reading)


def _read(reading: ZoneReading) -> None:
    parameters = {"zone": reading.zone, **READY_WORDS}
    reading.hosts = fetch_rows(SELECT_HOSTS, parameters)
    reading.slots = fetch_rows(SELECT_SLOTS, parameters)
    reading.members = fetch_rows(SELECT_MEMBERS, parameters)
    reading.vms = fetch_rows(SELECT_VMS, parameters)
    here = {row[1] for row in reading.vms}
    elsewhere = sorted({row[2] for row in reading.members} - here)
    if elsewhere:
        reading.vms += fetch_rows(SELECT_VMS_BY_UUID, {"uuids": elsewhere})
    reading.groups = dict(fetch_rows(SELECT_GROUPS, {}))
    reading.reports = read_reports(reading.zone)


def fetch_rows(statement: str, parameters: Mapping[str, Any]) -> list[_Row]:
    """Return the rows of a statement."""
    with connection.cursor() as cursor:
        cursor.execute(statement, parameters)
        return list(cursor.fetchall())


def snapshot_of(reading: ZoneReading) -> ZoneSnapshot:
    """Return rows as columns."""
    host_row = {row[0]: number for number, row in enumerate(reading.hosts)}
    vms = _vm_columns(reading, host_row)
    slots = _slot_columns(reading, host_row)
    vm_row = {uuid: number for number, uuid in enumerate(vms.uuids)}
    slot_row = {int(key): number for number, key in enumerate(slots.ids.tolist())}
    members = reading.members
    return ZoneSnapshot(
        zone=reading.zone,
        hosts=_host_columns(reading),
        vms=vms,
        slots=slots,
        members=MemberColumns(
            ids=_ints([row[0] for row in members]),
            slot=_codes([slot_row[row[1]] for row in members]),
            vm=_codes([vm_row[row[2]] for row in members]),
            joined_host=_codes([host_row.get(row[3], -1) for row in members]),
            is_validated=_bools([row[4] for row in members]),
        ),
        notes=reading.notes,
    )


def _host_columns(reading: ZoneReading) -> HostColumns:
    columns = list(zip(*reading.hosts, strict=True)) or [()] * 14
    return HostColumns(
        ids=_ints(columns[0]),
        names=tuple(columns[1]),
        racks=tuple(columns[2]),
        is_ready=_bools(columns[3]),
        effective_memory_bytes=_ints(columns[4]),
        effective_vcpus=_ints(columns[5]),
        used_memory_bytes=_ints(columns[6]),
        used_vcpus=_ints(columns[7]),
        held_memory_bytes=_ints(columns[8]),
        held_vcpus=_ints(columns[9]),
        failover_memory_bytes=_ints(columns[10]),
        failover_vcpus=_ints(columns[11]),
    )


def _slot_columns(reading: ZoneReading, host_row: Mapping[int, int]) -> SlotColumns:
    rows = reading.slots
    return SlotColumns(
        ids=_ints([row[0] for row in rows]),
        names=tuple(row[1] for row in rows),
        host=_codes([host_row.get(row[2], -1) for row in rows]),
        memory_bytes=_ints([row[3] for row in rows]),
        vcpus=_ints([row[4] for row in rows]),
        is_usable=_bools([row[5] and row[6] == SlotState.ACTIVE for row in rows]),
        is_consuming=_bools([row[6] == SlotState.CONSUMING for row in rows]),
    )


def _vm_columns(reading: ZoneReading, host_row: Mapping[int, int]) -> VmColumns:
    required_of = required_counts(
        reading.config.flavor_failover_requirements or {}, (row[5] for row in reading.vms)
    )
    known = {row[2] for row in reading.members}
    rows = sorted(
        (row for row in reading.vms if required_of[row[5]] or row[1] in known),
        key=lambda row: str(row[1]),
    )
    listed = _located(reading, rows, host_row)
    vanished = sorted(known - {row[1] for row in rows})
    sizes = {row[2]: (row[5], row[6]) for row in reading.members} if vanished else {}
    rows += [(-1, uuid, None, *sizes[uuid], "", "", 0, "", None) for uuid in vanished]
    listed += [(-1, False)] * len(vanished)
    order = sorted(range(len(rows)), key=lambda number: str(rows[number][1])) if vanished else None
    if order is not None:
        rows, listed = [rows[at] for at in order], [listed[at] for at in order]
    required, is_owed = _requirements(reading, rows, required_of)
    classes, class_codes = _classes(reading, rows, host_row)
    labels, label_codes, asked = _sizes(reading, rows)
    active = reading.reports.active_host
    return VmColumns(
        ids=_ints([row[0] for row in rows]),
        uuids=tuple(row[1] for row in rows),
        host=_codes([host for host, _ in listed]),
        memory_bytes=_ints([row[3] for row in rows]),
        vcpus=_ints([row[4] for row in rows]),
        asked_memory_bytes=_ints([size[0] for size in asked]) // MIB * MIB,
        asked_vcpus=_ints([size[1] for size in asked]),
        label_code=_codes(label_codes),
        labels=labels,
        required=_codes(required),
        is_owed=_bools(is_owed),
        class_code=_codes(class_codes),
        classes=classes,
        is_listed=_bools([is_listed for _, is_listed in listed]),
        is_seen=_bools([row[1] in active for row in rows]),
    )


def _located(
    reading: ZoneReading, rows: Sequence[_Row], host_row: Mapping[int, int]
) -> list[tuple[int, bool]]:
    """Return (row of the host, whether the VM counts as listed) of each VM.

    Where hosts report their VMs, they and the list must agree, or hosts are believed (5.3). A
    stopped VM that its host reports counts as listed, so that it keeps what it has for a while.
    """
    reading.notes["vms_listed"] = sum(row[2] in host_row for row in reading.vms)
    reports = reading.reports
    if not reports.lists:
        return [(host_row.get(row[2], -1), row[2] is not None) for row in rows]
    reading.notes["hosts_reporting"] = len(reports.lists)
    reading.notes["vms_reported"] = len(reports.known)
    name_row = {row[1]: number for number, row in enumerate(reading.hosts)}
    trusts = bool(reading.config.trust_hypervisor_location)
    located = []
    for row in rows:
        uuid, host = row[1], host_row.get(row[2], -1)
        active = reports.active_host.get(uuid)
        name = reading.hosts[host][1] if host >= 0 else ""
        if host >= 0 and name not in reports.lists:
            located.append((host, True))
        elif trusts and active is not None:
            located.append((name_row.get(active, -1), True))
        elif row[8] in STOPPED and uuid in reports.known:
            located.append((host, row[2] is not None))
        elif not trusts and host >= 0 and uuid in reports.lists[name]:
            located.append((host, True))
        elif host < 0 and row[2] is not None and active is None:
            located.append((-1, True))
        else:
            located.append((-1, False))
    return located


def _requirements(
    reading: ZoneReading,
    rows: Sequence[_Row],
    required_of: Mapping[str, int],
) -> tuple[list[int], list[bool]]:
    """Return what each VM needs, and whether what it misses is to be had now (17.6)."""
    chosen = settings.HEADROOM.failover
    oldest = reading.now - timedelta(seconds=chosen.stopped_grace_seconds)
    without_ha = set() if chosen.cover_non_ha_hosts else {r[0] for r in reading.hosts if r[13]}
    required, is_owed = [], []
    for row in rows:
        count, owed, status = required_of.get(row[5], 0), True, row[8]
        if status in NEVER_COVERED or row[2] in without_ha:
            count = 0
        elif status in STOPPED:
            owed = False
            if row[9] is not None and row[9] < oldest:
                count = 0
        required.append(count)
        is_owed.append(owed and count > 0)
    return required, is_owed


def _classes(
    reading: ZoneReading, rows: Sequence[_Row], host_row: Mapping[int, int]
) -> tuple[tuple[ClassKey, ...], list[int]]:
    codes: dict[_Row, int] = {}
    found = []
    groups, hosts = reading.groups, reading.hosts
    for row in rows:
        host = host_row.get(row[2], -1)
        key = (
            row[5],
            row[7],
            row[6],
            groups.get(row[1], ""),
            hosts[host][12] if host >= 0 else "",
        )
        found.append(codes.setdefault(key, len(codes)))
    return tuple(ClassKey(*key) for key in codes), found


def _sizes(
    reading: ZoneReading, rows: Sequence[_Row]
) -> tuple[tuple[tuple[str, str], ...], list[int], list[tuple[int, int]]]:
    """Return labels, the label of each VM, and the size of a reservation for it (12.2)."""
    by_group = bool(reading.config.use_flavor_group_resources)
    largest_of = largest_flavors() if by_group else {}
    codes: dict[str, int] = {}
    label_codes, asked = [], []
    for row in rows:
        flavor = row[5]
        label_codes.append(codes.setdefault(flavor, len(codes)))
        largest = largest_of.get(flavor) if by_group else None
        asked.append((row[3], row[4]) if largest is None else (largest.memory_bytes, largest.vcpus))
    labels = []
    for flavor in codes:
        chosen = largest_of.get(flavor)
        labels.append((flavor, flavor) if chosen is None else (chosen.flavor_name, chosen.group))
    return tuple(labels), label_codes, asked


def _ints(values: Sequence[int]) -> np.ndarray[Any, np.dtype[np.int64]]:
    return np.array(values, dtype=np.int64)


def _codes(values: Sequence[int]) -> np.ndarray[Any, np.dtype[np.int32]]:
    return np.array(values, dtype=np.int32)


def _bools(values: Sequence[bool]) -> np.ndarray[Any, np.dtype[np.bool_]]:
    return np.array(values, dtype=np.bool_)
