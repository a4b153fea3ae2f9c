"""Reading a zone as the columns that failover plans on (spec failover, 9.2 steps 1 and 2).

One statement per table and zone, in one snapshot of the database; nothing is read per VM.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from operator import itemgetter
from typing import Any

import numpy as np
import structlog
from django.conf import settings
from django.db.models import QuerySet
from numpy.typing import NDArray

from capacity.groups.flavor_groups import FlavorSpec
from capacity.groups.reading import load_group_definitions
from core.changes import one_snapshot
from failover.choices import SlotState
from failover.conf import SHIPPED_REQUIREMENTS, FailoverConfig, current_config
from failover.domain.coded import coded, combined
from failover.domain.patterns import required_counts
from failover.domain.zone_columns import (
    MEMBERS_ELSEWHERE,
    MEMBERS_SAID_GONE,
    HostColumns,
    MemberColumns,
    SlotColumns,
    VMColumns,
    ZoneSnapshot,
)
from failover.models import FailoverPolicy, FailoverZone
from hosts.domain.vm import ABSENT_STATUSES
from hosts.domain.vm_list import ReportingHost, active_hosts
from hosts.feed.state import known_until
from hosts.listing import deleted_vms
from hosts.models import HostState, HostStatus, Maintenance
from hosts.vm_source import reporting_hosts
from journal.clock import TOLERANCE
from journal.errors import NotReady
from journal.statements import Row as _Row
from journal.statements import fetch_rows
from scheduling.resources import MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class ZoneReports:
    """Lists of the hosts of a zone that report any.

    Attributes:
        lists: Host -> VMs that it runs; hosts that report nothing at all are missing.
        known: VMs that some host reports, running or not.
        active_host: VM -> the first host that runs it.
    """

    lists: Mapping[str, frozenset[str]] = field(default_factory=dict)
    known: frozenset[str] = frozenset()
    active_host: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, hosts: Sequence[ReportingHost]) -> ZoneReports:
        """Return what some hosts report."""
        return cls(
            lists={
                host.name: frozenset(vm.vm_uuid for vm in host.vms if vm.is_active)
                for host in hosts
            },
            known=frozenset(vm.vm_uuid for host in hosts for vm in host.vms),
            active_host=active_hosts(hosts),
        )


_Int32Column = NDArray[np.int32]
_Int64Column = NDArray[np.int64]
_BoolColumn = NDArray[np.bool_]

# What slots and VMs in flight into them block both is held once: a host is not over-subscribed for
# having VMs on their way into its slots (OFFSET 0: nothing is counted where none is).
HOST_COLUMNS = """
SELECT host.id, host.name, host.building_block,
       host.state = %(up)s AND NOT host.is_lost AND host.status = %(enabled)s
           AND host.maintenance = ANY(%(harmless)s)
           AND coalesce(host.conditions->>'Ready', 'True') = 'True',
       room.effective_memory_bytes, room.effective_vcpus,
       room.allocated_memory_bytes, room.allocated_vcpus,
       room.committed_memory_bytes + room.in_flight_memory_bytes - coalesce(twice.memory_bytes, 0),
       room.committed_vcpus + room.in_flight_vcpus - coalesce(twice.vcpus, 0),
       room.failover_memory_bytes, room.failover_vcpus,
       host.hypervisor_type,
       NOT host.high_availability OR host.conditions->>'HaEnabled' IS NOT DISTINCT FROM 'False'
  FROM hosts_host AS host JOIN capacity_hostcapacity AS room ON room.host_id = host.id
  LEFT JOIN LATERAL (
       SELECT shared.memory_bytes, shared.vcpus FROM capacity_blocked_twice(host.id) AS shared
        WHERE room.in_flight_memory_bytes > 0 OFFSET 0) AS twice ON true
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
       CASE WHEN vm.status = ANY(%(stopped)s) THEN vm.nova_updated_at END
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
STOPPED_WORDS: Mapping[str, Any] = {"stopped": sorted(STOPPED)}
NEVER_COVERED = frozenset(
    {"BUILD", "ERROR", "DELETED", "SOFT_DELETED", "SHELVED", "SHELVED_OFFLOADED"}
)


@dataclass(frozen=True, slots=True, order=True)
class ClassKey:
    """What the hosts of a VM depend on (spec failover, 17.5 "compatibility class").

    Attributes:
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
    """Return flavor pattern -> required count: as the policies say, as shipped without any."""
    policies = FailoverPolicy.objects.values_list("flavor_pattern", "required_count")
    return dict(policies) or dict(SHIPPED_REQUIREMENTS)


def failover_zones() -> list[str]:
    """Return the zones that have hosts or failover reservations, sorted; hosts need a zone."""
    return sorted(
        row[0]
        for row in fetch_rows(
            "SELECT DISTINCT zone FROM hosts_host WHERE zone <> '' UNION "
            "SELECT DISTINCT zone FROM capacity_reservation WHERE kind = 'failover' AND zone <> ''"
        )
    )


def load_zone(zone: str, config: FailoverConfig, *, now: datetime) -> ZoneSnapshot:
    """Return a zone as columns, read in one snapshot of the database.

    Args:
        config: Requirements, and which source is believed about locations.
        now: The present, for stopped VMs.
    """
    reading = ZoneReading(zone=zone, now=now, config=config)
    with one_snapshot():
        _read(reading)
    return snapshot_of(reading)


def _read(reading: ZoneReading) -> None:
    parameters = {"zone": reading.zone, **READY_WORDS, **STOPPED_WORDS}
    reading.hosts = fetch_rows(SELECT_HOSTS, parameters)
    reading.slots = fetch_rows(SELECT_SLOTS, parameters)
    reading.members = fetch_rows(SELECT_MEMBERS, parameters)
    reading.vms = fetch_rows(SELECT_VMS, parameters)
    here = {row[1] for row in reading.vms}
    elsewhere = sorted({row[2] for row in reading.members} - here)
    if elsewhere:
        reading.vms += fetch_rows(SELECT_VMS_BY_UUID, {"uuids": elsewhere, **STOPPED_WORDS})
    reading.groups = dict(fetch_rows(SELECT_GROUPS, {}))
    reading.reports = ZoneReports.of(reporting_hosts(reading.zone))


def snapshot_of(reading: ZoneReading, hosts: HostColumns | None = None) -> ZoneSnapshot:
    """Return rows as columns.

    Args:
        reading: Rows.
        hosts: All hosts of the zone; those that were read if left out.
    """
    hosts = _host_columns(reading) if hosts is None else hosts
    host_row = {key: number for number, key in enumerate(hosts.ids.tolist())}
    keys, slot_keys, uuids, vm_hosts, validated = _columns(reading.members, 7)[:5]
    vms = _vm_columns(reading, hosts, host_row, frozenset(uuids))
    slots = _slot_columns(reading, host_row)
    slot_row = {row[0]: number for number, row in enumerate(reading.slots)}
    vm_row = {uuid: number for number, uuid in enumerate(vms.uuids)}
    return ZoneSnapshot(
        zone=reading.zone,
        hosts=hosts,
        vms=vms,
        slots=slots,
        members=MemberColumns(
            ids=_ints(keys),
            slot=_codes(list(map(slot_row.__getitem__, slot_keys))),
            vm=_codes(list(map(vm_row.__getitem__, uuids))),
            joined_host=_host_rows(vm_hosts, host_row),
            is_validated=_bools(validated),
        ),
        notes=reading.notes,
    )


def _columns(rows: Sequence[_Row], width: int) -> Sequence[Sequence[Any]]:
    """Return the columns of rows; ``width`` empty ones if there are no rows."""
    return list(zip(*rows, strict=True)) or [()] * width


def _host_rows(keys: Sequence[int | None], host_row: Mapping[int, int]) -> _Int32Column:
    """Return int32[K], the rows of hosts; -1 for none and for those of other zones."""
    return _codes([host_row.get(key, -1) for key in keys])  # type: ignore[arg-type]  # None: absent


def _host_columns(reading: ZoneReading) -> HostColumns:
    columns = _columns(reading.hosts, 14)
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
    keys, names, hosts, memory_bytes, vcpus, is_ready, states = _columns(reading.slots, 7)
    return SlotColumns(
        ids=_ints(keys),
        names=tuple(names),
        host=_host_rows(hosts, host_row),
        memory_bytes=_ints(memory_bytes),
        vcpus=_ints(vcpus),
        is_usable=_bools(
            [
                ready and state == SlotState.ACTIVE
                for ready, state in zip(is_ready, states, strict=True)
            ]
        ),
        is_consuming=_bools([state == SlotState.CONSUMING for state in states]),
    )


def _vm_columns(
    reading: ZoneReading,
    hosts: HostColumns,
    host_row: Mapping[int, int],
    known: frozenset[str],
) -> VMColumns:
    """Return the VMs that need reservations or have some.

    Args:
        reading: Rows.
        hosts: Hosts of the zone.
        host_row: Host -> row.
        known: Users of reservations.
    """
    rows, required_of = _rows_of_vms(reading, known)
    (keys, uuids, host_keys, memory_bytes, vcpus, flavors, projects, specs, statuses, since) = (
        _columns(rows, 10)
    )
    home = _host_rows(host_keys, host_row)
    host, is_listed = _located(reading, hosts.names, rows, host_keys, home)
    names, label_codes = coded(flavors)
    required, is_owed = _requirements(
        reading,
        host_keys,
        _codes([required_of.get(name, 0) for name in names])[label_codes],
        statuses,
        since,
    )
    kinds = {row[0]: row[12] for row in reading.hosts}
    kind_names, kind_codes = coded([*(kinds.get(key, "") for key in host_row), ""])
    group_of = reading.groups
    classes, class_codes = combined(
        (names, label_codes),
        coded(specs),
        coded(projects),
        coded([group_of.get(uuid, "") for uuid in uuids] if group_of else [""] * len(uuids)),
        (kind_names, kind_codes[home]),
    )
    memory, cores = _ints(memory_bytes), _ints(vcpus)
    labels, asked_memory, asked_vcpus = _sizes(reading, names, label_codes, memory, cores)
    active = reading.reports.active_host
    return VMColumns(
        ids=_ints(keys),
        uuids=tuple(uuids),
        host=host,
        memory_bytes=memory,
        vcpus=cores,
        asked_memory_bytes=asked_memory // MIB * MIB,
        asked_vcpus=asked_vcpus,
        label_code=label_codes,
        labels=labels,
        required=required,
        is_owed=is_owed,
        class_code=class_codes,
        classes=tuple(ClassKey(*key) for key in classes),
        is_listed=is_listed,
        is_seen=_bools([uuid in active for uuid in uuids] if active else [False] * len(uuids)),
    )


def _rows_of_vms(
    reading: ZoneReading, known: frozenset[str]
) -> tuple[list[_Row], Mapping[str, int]]:
    """Return VMs by uuid, with those that only reservations know, and flavor -> required count."""
    required_of = required_counts(
        reading.config.flavor_failover_requirements or {}, {row[5] for row in reading.vms}
    )
    here = {row[0] for row in reading.hosts}
    reading.notes["vms_listed"] = sum(row[2] in here for row in reading.vms)
    rows = [row for row in reading.vms if required_of[row[5]] or row[1] in known]
    vanished = known - {row[1] for row in rows}
    away = {row[1]: row for row in reading.vms if row[2] not in here}
    gone = {uuid for uuid, row in away.items() if row[8] in ABSENT_STATUSES}
    elsewhere = {uuid for uuid, row in away.items() if row[2] is not None} - gone
    gone |= deleted_vms(vanished) if vanished else frozenset()
    reading.notes[MEMBERS_SAID_GONE] = sum(row[2] in gone for row in reading.members)
    reading.notes[MEMBERS_ELSEWHERE] = sum(row[2] in elsewhere for row in reading.members)
    if vanished:
        sizes = {row[2]: (row[5], row[6]) for row in reading.members}
        rows += [(-1, uuid, None, *sizes[uuid], "", "", 0, "", None) for uuid in vanished]
    rows.sort(key=itemgetter(1))
    return rows, required_of


def _located(
    reading: ZoneReading,
    names: Sequence[str],
    rows: Sequence[_Row],
    host_keys: Sequence[int | None],
    home: _Int32Column,
) -> tuple[_Int32Column, _BoolColumn]:
    """Return (row of the host, whether the VM counts as listed) of each VM.

    Where hosts report their VMs, they and the list must agree, or hosts are believed (5.3). A
    stopped VM that its host reports counts as listed, so that it keeps what it has for a while.

    Args:
        reading: Rows.
        names: Hosts of the zone.
        rows: VMs.
        host_keys: Host of each VM.
        home: int32[V], row of the host that the list says.
    """
    reports = reading.reports
    if not reports.lists:
        return home, _bools([key is not None for key in host_keys])
    reading.notes["hosts_reporting"] = len(reports.lists)
    reading.notes["vms_reported"] = len(reports.known)
    name_row = {name: number for number, name in enumerate(names)}
    trusts = bool(reading.config.trust_hypervisor_location)
    located = []
    for row, host in zip(rows, home.tolist(), strict=True):
        uuid = row[1]
        active = reports.active_host.get(uuid)
        name = names[host] if host >= 0 else ""
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
    hosts, is_listed = _columns(located, 2)
    return _codes(hosts), _bools(is_listed)


def _requirements(
    reading: ZoneReading,
    host_keys: Sequence[int | None],
    counts: _Int32Column,
    statuses: Sequence[str],
    since: Sequence[datetime | None],
) -> tuple[_Int32Column, _BoolColumn]:
    """Return what each VM needs, and whether what it misses is to be had now (17.6).

    Args:
        reading: Rows.
        host_keys: Host of each VM.
        counts: int32[V], what its flavor needs.
        statuses: Its status.
        since: When Nova changed it last.
    """
    chosen = settings.HEADROOM.failover
    oldest = known_until(reading.now) - timedelta(seconds=chosen.stopped_grace_seconds)
    required = counts.copy()
    without_ha = set() if chosen.cover_non_ha_hosts else {r[0] for r in reading.hosts if r[13]}
    if without_ha:
        required[_bools([key in without_ha for key in host_keys])] = 0
    words, codes = coded(statuses)
    required[_bools([word in NEVER_COVERED for word in words])[codes]] = 0
    is_stopped = _bools([word in STOPPED for word in words])[codes]
    if is_stopped.any():
        required[is_stopped & _bools([at is not None and at < oldest for at in since])] = 0
    is_owed = ~is_stopped
    return required, is_owed & (required > 0)


def _sizes(
    reading: ZoneReading,
    flavors: Sequence[str],
    codes: _Int32Column,
    memory_bytes: _Int64Column,
    vcpus: _Int64Column,
) -> tuple[
    tuple[tuple[str, str], ...],
    _Int64Column,
    _Int64Column,
]:
    """Return labels, and memory and vCPUs of a reservation for each VM (12.2).

    Args:
        reading: Rows.
        flavors: Names.
        codes: int32[V], which of them each VM has.
        memory_bytes: int64[V].
        vcpus: int64[V].
    """
    by_group = bool(reading.config.use_flavor_group_resources)
    largest_of = largest_flavors() if by_group else {}
    labels = []
    for code, flavor in enumerate(flavors):
        if flavor not in largest_of:
            labels.append((flavor, flavor))
            continue
        group, largest = largest_of[flavor]
        labels.append((largest.name, group))
        memory_bytes = np.where(codes == code, largest.memory_bytes, memory_bytes)
        vcpus = np.where(codes == code, largest.vcpus, vcpus)
    return tuple(labels), memory_bytes, vcpus


def _ints(values: Sequence[int]) -> _Int64Column:
    return np.array(values, dtype=np.int64)


def _codes(values: Sequence[int]) -> _Int32Column:
    return np.array(values, dtype=np.int32)


def _bools(values: Sequence[bool]) -> _BoolColumn:
    return np.array(values, dtype=np.bool_)


log = structlog.get_logger(__name__)


def largest_flavors() -> dict[str, tuple[str, FlavorSpec]]:
    """Return flavor name -> its group and that one's largest flavor; empty while none is known."""
    try:
        definitions = load_group_definitions()
    except NotReady as not_ready:
        log.warning("failover_groups_not_ready", message=not_ready.message)
        return {}
    largest_of: dict[str, tuple[str, FlavorSpec]] = {}
    for name, group in definitions.items():
        largest = max(group.flavors, key=lambda flavor: (flavor.memory_bytes, flavor.vcpus))
        for flavor in group.flavors:
            largest_of.setdefault(flavor.name, (name, largest))
    return largest_of


# How far ahead a moment of the loop can be: one further ahead is a wrong clock's, and is due.


def waiting_zones(now: datetime) -> QuerySet[FailoverZone]:
    """Return the zones whose next run is not due."""
    config, chosen = current_config(failover_requirements()), settings.HEADROOM.failover
    longest = max(
        config.reconcile_interval or timedelta(),
        config.short_reconcile_interval or timedelta(),
        timedelta(seconds=chosen.reconcile_interval_seconds),
        timedelta(seconds=chosen.short_reconcile_interval_seconds),
    )
    latest = now + longest + TOLERANCE
    return FailoverZone.objects.filter(next_run_at__gt=now, next_run_at__lte=latest)


def latest_validation(now: datetime) -> datetime:
    """Return the last moment at which the next validation of a reservation can be."""
    chosen = settings.HEADROOM.failover
    most = chosen.revalidation_interval_seconds * (1 + chosen.revalidation_jitter_ratio)
    return now + timedelta(seconds=most) + TOLERANCE


def latest_cooldown(now: datetime) -> datetime:
    """Return the last moment at which a refused host is looked at again."""
    chosen = settings.HEADROOM.failover
    most = max(chosen.retry_cooldown_seconds, chosen.max_retry_cooldown_seconds)
    return now + timedelta(seconds=most) + TOLERANCE
