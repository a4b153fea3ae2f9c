"""Keeping the capacity of flavor groups per zone (spec liquid, 13; liquid, 8.1).

A zone is computed in its own transaction under its capacity lock, without the planners' zone lock:
readers that find it stale wait for the first of them. A row is written only when it differs.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

import structlog
from django.db import transaction

from capacity.figures.capacity_freshness import (
    ReadPosition,
    has_changed_since,
    has_stale_totals,
    read_position,
    stale_zones,
    zones_computed_within,
)
from capacity.figures.probe_pipelines import current_probes, probes_fingerprint
from capacity.figures.zone_capacity import GroupFigures, ZoneFigures, zone_figures
from capacity.figures.zone_sums import RunningVMs, ZoneUse, reserved_unused, running_vms
from capacity.groups.reading import definitions_fingerprint, load_group_definitions
from capacity.hooks import hooks
from capacity.host_table import current_host_table
from capacity.locks import LockSpace, take_lock
from capacity.metrics import PROBE_FAILURES
from capacity.models import CapacityComputation, FlavorCapacity, FlavorGroup, GroupCapacity
from core.changes import xmin_of
from hosts.models import Host
from journal.clock import database_now
from journal.errors import Busy
from journal.progress import Advance, unwatched
from scheduling.resources import ZERO, ResourceVector

ALGORITHM_VERSION = 2
MAX_READS = 3
MAX_WAITS = 5

REASON_SUCCEEDED = "ReconcileSucceeded"
REASON_FAILED = "ReconcileFailed"
REASON_RETIRED = "FlavorGroupRetired"
RETIRED_MESSAGE = "the flavor group is gone"

OUTCOME_COMPUTED = "computed"
OUTCOME_FRESH = "fresh"
OUTCOME_REMOVED = "removed"
OUTCOME_BUSY = "busy"
OUTCOME_POSTPONED = "postponed"

WRITTEN_COLUMNS = (
    "smallest_flavor_name",
    "total_memory_bytes",
    "total_vcpus",
    "free_memory_bytes",
    "free_vcpus",
    "exclusively_free_memory_bytes",
    "exclusively_free_vcpus",
    "exclusively_free_slots",
    "running_instances",
    "running_slots",
    "running_memory_bytes",
    "running_vcpus",
    "reserved_unused_memory_bytes",
    "reserved_unused_vcpus",
    "reserved_unused_slots",
    "committed_slots",
    "committed_memory_bytes",
    "is_ready",
    "ready_reason",
    "ready_message",
    "computed_at",
)
FLAVOR_COLUMNS = ("total_vm_slots", "total_hosts", "placeable_vms", "placeable_hosts")

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ZoneRefresh:
    """What happened to one zone.

    Attributes:
        outcome: ``computed``, ``fresh`` (nothing to do), ``removed`` (no hosts any more),
            ``busy`` (another was computing it for longer than the lock timeout) or ``postponed``
            (changed, but computed too short a time ago).
        changed_groups: Groups whose row was created, changed or removed.
        failed_groups: Groups of which a probe failed.
    """

    zone: str
    outcome: str
    changed_groups: tuple[str, ...] = ()
    failed_groups: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _ZoneState:
    """Everything the rows of a zone are made of."""

    read: ReadPosition
    figures: ZoneFigures
    retired: Mapping[str, GroupFigures]
    use: ZoneUse
    reserved: Mapping[str, ResourceVector]
    committed: Mapping[str, int]


def ensure_fresh(zones: Collection[str]) -> None:
    """Make the capacity rows of some zones tell what the database says now.

    Zones without hosts get no rows. Nothing is written for zones that are fresh. Each stale zone
    is computed in a transaction of its own under its capacity lock.

    Raises:
        NotReady: flavor groups have not been extracted yet.
        Busy: another computation of a zone held its lock for several lock timeouts.
    """
    load_group_definitions()
    for zone in sorted(stale_zones(zones, inputs=_inputs())):
        _wait_for_fresh(zone)


def ensure_totals(zone: str) -> None:
    """Make sure that a zone's total cores are known, and those of its present hosts and flavors.

    Cheap as long as neither changed: VMs and slots do not change totals.

    Raises:
        NotReady: flavor groups have not been extracted yet.
        Busy: another computation of the zone held its lock for several lock timeouts.
    """
    wanted = set(load_group_definitions(include_retired=True))
    probed = GroupCapacity.objects.filter(zone=zone, total_vcpus__isnull=False)
    is_missing = wanted - set(probed.values_list("group_name", flat=True))
    if is_missing or has_stale_totals(zone, inputs=_inputs()):
        ensure_fresh([zone])


def refresh_group_capacity(
    *,
    zones: Collection[str] | None = None,
    is_forced: bool = False,
    min_age: timedelta = timedelta(0),
    progress: Advance = unwatched,
) -> tuple[ZoneRefresh, ...]:
    """Compute the capacity of zones that are not fresh.

    Args:
        zones: Zones to look at; every zone that has hosts or rows when left out.
        is_forced: Compute fresh zones too.
        min_age: Put off zones that were computed less long ago; their changes are one later run.
        progress: Called with 1 after each zone that was looked at.

    Returns:
        What happened, by zone. A zone that is busy is reported, not waited for again.

    Raises:
        NotReady: flavor groups have not been extracted yet.
    """
    load_group_definitions()
    wanted = sorted(known_zones() if zones is None else set(zones))
    stale = stale_zones(wanted, inputs=_inputs())
    stale |= _zones_without_hosts(wanted)
    early = zones_computed_within(stale, min_age) if min_age and not is_forced else set()
    refreshed = []
    for zone in wanted:
        if zone in early:
            refreshed.append(ZoneRefresh(zone=zone, outcome=OUTCOME_POSTPONED))
        elif not is_forced and zone not in stale:
            refreshed.append(ZoneRefresh(zone=zone, outcome=OUTCOME_FRESH))
        else:
            refreshed.append(_refresh_unless_busy(zone, is_forced=is_forced))
        progress(1)
    return tuple(refreshed)


def _refresh_unless_busy(zone: str, *, is_forced: bool) -> ZoneRefresh:
    try:
        return _refresh_zone(zone, is_forced=is_forced)
    except Busy as error:
        log.warning("capacity_zone_busy", zone=zone, error=error.message)
        return ZoneRefresh(zone=zone, outcome=OUTCOME_BUSY)


def known_zones() -> set[str]:
    """Return the zones that have hosts or capacity rows."""
    names: set[str] = set()
    for queryset in (Host.objects, GroupCapacity.objects, CapacityComputation.objects):
        names.update(queryset.order_by().values_list("zone", flat=True).distinct())
    return names - {""}


def largest_group() -> tuple[str, int] | None:
    """Return the flavor group with the most hosts that one of its flavors may use, and how many.

    As they were counted last; None before that.
    """
    hosts: dict[str, dict[str, int]] = {}
    names = ("group_capacity__group_name", "flavor_name", "total_hosts")
    for group, flavor, count in FlavorCapacity.objects.values_list(*names):
        of_group = hosts.setdefault(group, {})
        of_group[flavor] = of_group.get(flavor, 0) + count
    most = {group: max(of_flavor.values()) for group, of_flavor in hosts.items()}
    return max(most.items(), key=lambda one: (one[1], one[0]), default=None)


def _wait_for_fresh(zone: str) -> None:
    """Compute a zone, or wait for the one who does: a large zone takes longer than one timeout."""
    for _ in range(MAX_WAITS - 1):
        try:
            _refresh_zone(zone, is_forced=False)
        except Busy as error:
            log.info("capacity_zone_waiting", zone=zone, error=error.message)
        else:
            return
    _refresh_zone(zone, is_forced=False)


def _zones_without_hosts(zones: Iterable[str]) -> set[str]:
    with_rows = set(
        GroupCapacity.objects.filter(zone__in=zones).values_list("zone", flat=True).distinct()
    )
    return with_rows - set(
        Host.objects.filter(zone__in=with_rows).order_by().values_list("zone", flat=True).distinct()
    )


def _inputs() -> str:
    return f"{ALGORITHM_VERSION}|{definitions_fingerprint()}|{probes_fingerprint()}"


def _refresh_zone(zone: str, *, is_forced: bool) -> ZoneRefresh:
    with transaction.atomic(durable=True):
        take_lock(LockSpace.GROUP_CAPACITY, [zone])
        inputs = _inputs()
        if not Host.objects.filter(zone=zone).exists():
            return _remove_zone(zone)
        if not is_forced and not stale_zones([zone], inputs=inputs):
            return ZoneRefresh(zone=zone, outcome=OUTCOME_FRESH)
        state = _read_zone(zone)
        changed = _write_rows(zone, state)
        CapacityComputation.objects.update_or_create(
            zone=zone,
            defaults={
                "snapshot": state.read.position.snapshot,
                "snapshot_xmin": xmin_of(state.read.position.snapshot),
                "inputs": inputs,
                "host_count": state.read.host_count,
                "misplaced_vms": state.use.misplaced_vms,
                "ungrouped_vms": state.use.ungrouped_vms,
                "computed_at": database_now(),
            },
        )
    for group, message in state.figures.failed.items():
        log.error("capacity_probe_failed", zone=zone, group=group, error=message)
    PROBE_FAILURES.inc(len(state.figures.failed))
    left = state.figures.unassigned
    log.info(
        "capacity_computed",
        zone=zone,
        groups=sorted(state.figures.groups),
        changed=len(changed),
        unassigned_memory_bytes=left.memory_bytes,
        unassigned_vcpus=left.vcpus,
        misplaced_vms=state.use.misplaced_vms,
    )
    return ZoneRefresh(
        zone=zone,
        outcome=OUTCOME_COMPUTED,
        changed_groups=changed,
        failed_groups=tuple(state.figures.failed),
    )


def _remove_zone(zone: str) -> ZoneRefresh:
    rows = GroupCapacity.objects.filter(zone=zone)
    names = tuple(rows.order_by("group_name").values_list("group_name", flat=True))
    rows.delete()
    CapacityComputation.objects.filter(zone=zone).delete()
    return ZoneRefresh(zone=zone, outcome=OUTCOME_REMOVED, changed_groups=names)


def _read_zone(zone: str) -> _ZoneState:
    """Read a zone from one state of the database, or give up after a few tries.

    Under load something may change between the statements; then the position says so, and the next
    reader computes again.
    """
    for attempt in range(1, MAX_READS + 1):
        read = read_position(zone)
        groups = load_group_definitions()
        every = load_group_definitions(include_retired=True)
        table = current_host_table()
        use = running_vms(zone)
        reserved = reserved_unused(zone)
        if attempt == MAX_READS or not has_changed_since(read):
            break
    gone = [group for name, group in every.items() if name not in groups]
    return _ZoneState(
        read=read,
        figures=zone_figures(table, zone, groups.values(), current_probes()),
        retired=_without_room(zone_figures(table, zone, gone, current_probes())) if gone else {},
        use=use,
        reserved=reserved,
        committed=hooks.commitment_figures.committed_slots(
            zone,
            {
                name: group.smallest.memory_bytes
                for name, group in every.items()
                if group.smallest.memory_bytes > 0
            },
        ),
    )


def _without_room(figures: ZoneFigures) -> Mapping[str, GroupFigures]:
    """Return the figures of retired groups, which have what they use and hold, and no free room."""
    return {
        name: replace(one, flavors=(), free=ZERO, exclusive=ZERO, exclusive_slots=0)
        for name, one in figures.groups.items()
    }


def _write_rows(zone: str, state: _ZoneState) -> tuple[str, ...]:
    """Write what differs; return the names of the groups whose row changed."""
    now = database_now()
    existing = {row.group_name: row for row in GroupCapacity.objects.filter(zone=zone)}
    created: list[GroupCapacity] = []
    updated: list[GroupCapacity] = []
    every = {**state.figures.groups, **state.retired}
    for name, figures in every.items():
        row = existing.get(name)
        columns = _columns(name, figures, state)
        if row is not None and state.figures.failed:
            columns |= _share_not_grown(row, columns)
        if row is None:
            created.append(GroupCapacity(group_name=name, zone=zone, computed_at=now, **columns))
        elif _set_columns(row, columns, now):
            updated.append(row)
    for name, message in state.figures.failed.items():
        if name in existing and _set_not_ready(existing[name], REASON_FAILED, message):
            updated.append(existing[name])
    retired, removed = _without_definition(existing, state)
    updated.extend(
        existing[name]
        for name in retired
        if _set_not_ready(existing[name], REASON_RETIRED, RETIRED_MESSAGE)
    )
    GroupCapacity.objects.filter(zone=zone, group_name__in=removed).delete()
    GroupCapacity.objects.bulk_create(created)
    if updated:
        GroupCapacity.objects.bulk_update(sorted(updated, key=_pk), WRITTEN_COLUMNS)
    rows = {row.group_name: row for row in (*existing.values(), *created)}
    touched = _write_flavors({name: rows[name] for name in every}, every)
    return tuple(sorted({*(row.group_name for row in (*created, *updated)), *removed, *touched}))


def _share_not_grown(row: GroupCapacity, columns: Mapping[str, Any]) -> dict[str, int]:
    """Return the exclusive share of a group, at most what it had before.

    A group whose probe failed takes no part in the split; what was its share is not the others'.

    Source: spec liquid, 20 (12).
    """
    return {
        column: min(getattr(row, column), columns[column])
        for column in WRITTEN_COLUMNS
        if column.startswith("exclusively_free_")
    }


def _without_definition(
    existing: Mapping[str, GroupCapacity], state: _ZoneState
) -> tuple[list[str], list[str]]:
    known = {*state.figures.groups, *state.figures.failed, *state.retired}
    gone = sorted(set(existing) - known)
    retired_names = set(
        FlavorGroup.objects.filter(name__in=gone, is_retired=True).values_list("name", flat=True)
    )
    retired = [name for name in gone if name in retired_names]
    return retired, [name for name in gone if name not in retired_names]


def _columns(name: str, figures: GroupFigures, state: _ZoneState) -> dict[str, Any]:
    running = state.use.running.get(name, RunningVMs())
    reserved = state.reserved.get(name, ZERO)
    committed = state.committed.get(name, 0)
    unit_bytes = figures.smallest.memory_bytes
    return {
        "smallest_flavor_name": figures.smallest.name,
        "total_memory_bytes": figures.total.memory_bytes,
        "total_vcpus": figures.total.vcpus,
        "free_memory_bytes": figures.free.memory_bytes,
        "free_vcpus": figures.free.vcpus,
        "exclusively_free_memory_bytes": figures.exclusive.memory_bytes,
        "exclusively_free_vcpus": figures.exclusive.vcpus,
        "exclusively_free_slots": figures.exclusive_slots,
        "running_instances": running.vms,
        "running_slots": running.slots,
        "running_memory_bytes": running.resources.memory_bytes,
        "running_vcpus": running.resources.vcpus,
        "reserved_unused_memory_bytes": reserved.memory_bytes,
        "reserved_unused_vcpus": reserved.vcpus,
        "reserved_unused_slots": reserved.memory_bytes // unit_bytes,  # floor of the group's sum
        "committed_slots": committed,
        "committed_memory_bytes": committed * unit_bytes,
        "is_ready": True,
        "ready_reason": REASON_RETIRED if name in state.retired else REASON_SUCCEEDED,
        "ready_message": RETIRED_MESSAGE if name in state.retired else "",
    }


def _set_columns(row: GroupCapacity, columns: Mapping[str, Any], now: datetime) -> bool:
    if all(getattr(row, column) == entry for column, entry in columns.items()):
        return False
    for column, entry in columns.items():
        setattr(row, column, entry)
    row.computed_at = now
    return True


def _set_not_ready(row: GroupCapacity, reason: str, message: str) -> bool:
    if (row.is_ready, row.ready_reason, row.ready_message) == (False, reason, message):
        return False
    row.is_ready, row.ready_reason, row.ready_message = False, reason, message
    return True


def _write_flavors(
    rows: Mapping[str, GroupCapacity], figures: Mapping[str, GroupFigures]
) -> set[str]:
    """Make the flavor rows of some groups agree; return the groups of which one changed."""
    existing = {
        (row.group_capacity_id, row.flavor_name): row
        for row in FlavorCapacity.objects.filter(group_capacity__in=rows.values())
    }
    created: list[FlavorCapacity] = []
    updated: list[FlavorCapacity] = []
    touched: set[str] = set()
    for name, capacity in rows.items():
        for probe in figures[name].flavors:
            columns = {column: getattr(probe, column) for column in FLAVOR_COLUMNS}
            row = existing.pop((capacity.pk, probe.flavor_name), None)
            if row is None:
                created.append(
                    FlavorCapacity(
                        group_capacity=capacity, flavor_name=probe.flavor_name, **columns
                    )
                )
            elif any(getattr(row, column) != columns[column] for column in FLAVOR_COLUMNS):
                for column, count in columns.items():
                    setattr(row, column, count)
                updated.append(row)
            else:
                continue
            touched.add(name)
    if existing:
        FlavorCapacity.objects.filter(pk__in=[row.pk for row in existing.values()]).delete()
        names = {capacity.pk: name for name, capacity in rows.items()}
        touched.update(names[row.group_capacity_id] for row in existing.values())
    FlavorCapacity.objects.bulk_create(created)
    if updated:
        FlavorCapacity.objects.bulk_update(sorted(updated, key=_pk), FLAVOR_COLUMNS)
    return touched


def _pk(row: GroupCapacity | FlavorCapacity) -> int:
    return int(row.pk)
