"""What is known about future room: expiries, drains, planned hosts (spec liquid, 11.5, 20 row 6).

A timeline holds every known change of room in the order of time. The state after the first n
moments is a snapshot like any other, so the planner that decides a request now also says whether
the same request would fit then.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum

import numpy as np

from capacity.domain.flavor_groups import FlavorGroupDef
from capacity.domain.zone_capacity import zone_figures
from commitments.domain.admission import (
    AdmissionPlan,
    AdmissionSnapshot,
    CommitmentTarget,
    CoresLedger,
    plan_admission,
)
from commitments.domain.placing import SlotAsk, place_slots, table_with_released
from scheduling.resources import ResourceVector
from scheduling.table import HostTable, Int64Column

NO_ENTRIES: Int64Column = np.zeros(0, dtype=np.int64)
EFFECTIVE_COLUMNS = ("eff_memory_bytes", "eff_vcpus")


class HostEdit(StrEnum):
    """What happens to a host."""

    ADDED = "added"
    DRAINED = "drained"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class HostChange:
    """A host that comes or goes.

    Attributes:
        edit: What happens.
        host_id: The host that goes, or the host that the new one is like.
        name: Name of a new host, unique; unused otherwise.
        displaced: Slots and VMs that need another host when it goes, most important first.
    """

    edit: HostEdit
    host_id: int
    name: str = ""
    displaced: tuple[SlotAsk, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Releases:
    """Room of committed slots that is given back, as parallel int64 columns.

    Attributes:
        moment: Index into the timeline's moments, ascending.
        host_ids: Host keys.
        memory_bytes: Room given back.
        vcpus: Room given back.
    """

    moment: Int64Column = field(default_factory=lambda: NO_ENTRIES)
    host_ids: Int64Column = field(default_factory=lambda: NO_ENTRIES)
    memory_bytes: Int64Column = field(default_factory=lambda: NO_ENTRIES)
    vcpus: Int64Column = field(default_factory=lambda: NO_ENTRIES)


@dataclass(frozen=True, slots=True, kw_only=True)
class CoresRelease:
    """Cores of a flavor group in a zone that are no longer held from a moment on."""

    moment: int
    flavor_group_name: str
    zone: str
    vcpus: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """Known changes of room.

    Attributes:
        moments: Distinct times, ascending.
        releases: Slots that end, by moment.
        cores: Cores commitments that end, by moment.
        hosts: (moment, change), ascending.
    """

    moments: tuple[datetime, ...] = ()
    releases: Releases = field(default_factory=Releases)
    cores: tuple[CoresRelease, ...] = ()
    hosts: tuple[tuple[int, HostChange], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class EditedSnapshot:
    """A snapshot after changes.

    Attributes:
        snapshot: What a plan is made on.
        unplaced: Displaced slots and VMs that no other host has room for.
    """

    snapshot: AdmissionSnapshot
    unplaced: tuple[SlotAsk, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """The moment from which a request fits, and the plan that shows it."""

    at: datetime
    plan: AdmissionPlan


def with_host_changes(snapshot: AdmissionSnapshot, changes: Sequence[HostChange]) -> EditedSnapshot:
    """Return a snapshot after hosts came and went.

    A new host is an empty copy of one that exists. A host that goes has no room any more; when all
    of them are gone, what was on them is placed on the others, in the given order, and is in the
    way there. Cores of the groups that the snapshot has a ledger for are counted again. Unknown
    host keys change nothing.
    """
    hosts = snapshot.hosts
    row_of_id = {int(host_id): row for row, host_id in enumerate(hosts.host_ids)}
    displaced: list[SlotAsk] = []
    for number, change in enumerate(changes, start=1):
        row = row_of_id.get(change.host_id)
        if row is None:
            continue
        if change.edit is HostEdit.ADDED:
            hosts = _with_new_host(hosts, snapshot.hosts, row, change.name, -number)
        else:
            hosts = hosts.replace_columns([row], {column: [0] for column in EFFECTIVE_COLUMNS})
            displaced.extend(change.displaced)
    hosts, unplaced = _rehoused(hosts, displaced)
    edited = replace(snapshot, hosts=hosts)
    if changes:
        edited = replace(edited, cores=_recounted(edited))
    return EditedSnapshot(snapshot=edited, unplaced=unplaced)


def _with_new_host(
    hosts: HostTable, before: HostTable, row: int, name: str, host_id: int
) -> HostTable:
    """Return the table with an empty host like the one in ``row`` was before any change."""
    columns = {column: [int(getattr(before, column)[row])] for column in EFFECTIVE_COLUMNS}
    return hosts.with_copy(row, name=name, host_id=host_id).replace_columns([len(hosts)], columns)


def _rehoused(
    hosts: HostTable, displaced: Sequence[SlotAsk]
) -> tuple[HostTable, tuple[SlotAsk, ...]]:
    taken: dict[int, ResourceVector] = {}
    unplaced = []
    for ask, decision in zip(displaced, place_slots(hosts, displaced), strict=True):
        if decision is None:
            continue
        if decision.host_id is None:
            unplaced.append(ask)
        else:
            taken[decision.host_id] = taken.get(decision.host_id, ResourceVector()) + ask.slot
    return table_with_released(hosts, taken), tuple(unplaced)


def _recounted(snapshot: AdmissionSnapshot) -> Mapping[tuple[str, str], CoresLedger]:
    ledgers = dict(snapshot.cores)
    for zone in sorted({zone for _group, zone in ledgers}):
        groups = _groups_of(snapshot, zone)
        figures = zone_figures(snapshot.hosts, zone, groups)
        for group in groups:
            known = figures.groups.get(group.name)
            ledger = ledgers[group.name, zone]
            if known is not None and ledger.total_vcpus is not None:
                ledgers[group.name, zone] = replace(ledger, total_vcpus=known.total.vcpus)
    return ledgers


def _groups_of(snapshot: AdmissionSnapshot, zone: str) -> tuple[FlavorGroupDef, ...]:
    names = sorted(group for group, its_zone in snapshot.cores if its_zone == zone)
    return tuple(snapshot.groups[name] for name in names if name in snapshot.groups)


class Sweep:
    """Snapshots along a timeline, host changes applied once each."""

    def __init__(self, snapshot: AdmissionSnapshot, timeline: Timeline) -> None:
        """Start at the present.

        Args:
            snapshot: The present, with a cores ledger for every group and zone asked about.
            timeline: What is known to come.
        """
        self._timeline = timeline
        self._present = snapshot
        self._edited: dict[int, AdmissionSnapshot] = {}

    def snapshot_at(self, moment: int) -> AdmissionSnapshot:
        """Return the snapshot right after a moment of the timeline, given by its index."""
        base = self._with_hosts(moment)
        count = int(np.searchsorted(self._timeline.releases.moment, moment, side="right"))
        hosts = _with_released(base.hosts, self._timeline.releases, count)
        return replace(base, hosts=hosts, cores=self._cores_at(base, moment))

    def _with_hosts(self, moment: int) -> AdmissionSnapshot:
        changes = [change for at, change in self._timeline.hosts if at <= moment]
        if len(changes) not in self._edited:
            self._edited[len(changes)] = with_host_changes(self._present, changes).snapshot
        return self._edited[len(changes)]

    def _cores_at(
        self, base: AdmissionSnapshot, moment: int
    ) -> Mapping[tuple[str, str], CoresLedger]:
        ledgers = dict(base.cores)
        for release in self._timeline.cores:
            key = (release.flavor_group_name, release.zone)
            if release.moment <= moment and key in ledgers:
                held_vcpus = ledgers[key].held_vcpus - release.vcpus
                ledgers[key] = replace(ledgers[key], held_vcpus=max(held_vcpus, 0))
        return ledgers


def _with_released(hosts: HostTable, releases: Releases, count: int) -> HostTable:
    if not count:
        return hosts
    order = np.argsort(hosts.host_ids, kind="stable")
    ordered = hosts.host_ids[order]
    positions = np.searchsorted(ordered, releases.host_ids[:count])
    known = positions < len(ordered)
    known[known] = ordered[positions[known]] == releases.host_ids[:count][known]
    rows = order[positions[known]]
    memory_bytes = hosts.committed_memory_bytes.copy()
    vcpus = hosts.committed_vcpus.copy()
    np.subtract.at(memory_bytes, rows, releases.memory_bytes[:count][known])
    np.subtract.at(vcpus, rows, releases.vcpus[:count][known])
    touched = np.unique(rows)
    return hosts.replace_columns(
        touched,
        {
            "committed_memory_bytes": np.maximum(memory_bytes[touched], 0),
            "committed_vcpus": np.maximum(vcpus[touched], 0),
        },
    )


def first_fit(
    snapshot: AdmissionSnapshot, targets: Sequence[CommitmentTarget], timeline: Timeline
) -> Fit | None:
    """Return the first known moment at which a batch that is refused now would be accepted.

    Between two changes of hosts room only grows, so the last moment of such a stretch tells whether
    the batch fits in it at all, and bisection finds where that begins: the number of plans is the
    number of host changes plus the logarithm of the number of expiries. What is returned fits, and
    does not fit at the moment before.

    Args:
        snapshot: The present.
        targets: The batch; moments at or after the end of any of them are not looked at.
        timeline: What is known to come.

    Source: spec liquid, 11.5 (``retryAt``).
    """
    ends = [t.desired.end_time for t in targets if t.desired is not None and t.is_holding]
    last = len(timeline.moments) - 1
    for end in ends:
        if end is not None:
            last = min(last, bisect_left(timeline.moments, end) - 1)
    sweep = Sweep(snapshot, timeline)

    def fit_at(moment: int) -> Fit | None:
        at = timeline.moments[moment]
        plan = plan_admission(sweep.snapshot_at(moment), targets, may_reject=True, now=at)
        return None if plan.rejections else Fit(at=at, plan=plan)

    starts = sorted({0, *(at for at, _change in timeline.hosts)})
    for start, following in zip(starts, [*starts[1:], last + 1], strict=True):
        end_of_stretch = min(following - 1, last)
        if end_of_stretch < start:
            continue
        found = fit_at(end_of_stretch)
        if found is None:
            continue
        low, high = start, end_of_stretch
        while low < high:
            middle = (low + high) // 2
            earlier = fit_at(middle)
            if earlier is None:
                low = middle + 1
            else:
                found, high = earlier, middle
        return found
    return None


def later_part(timeline: Timeline, after: datetime) -> Timeline:
    """Return the part of a timeline that is later than a time."""
    passed = bisect_right(timeline.moments, after)
    releases = timeline.releases
    kept = int(np.searchsorted(releases.moment, passed))
    return Timeline(
        moments=timeline.moments[passed:],
        releases=Releases(
            moment=releases.moment[kept:] - passed,
            host_ids=releases.host_ids[kept:],
            memory_bytes=releases.memory_bytes[kept:],
            vcpus=releases.vcpus[kept:],
        ),
        cores=tuple(
            replace(release, moment=release.moment - passed)
            for release in timeline.cores
            if release.moment >= passed
        ),
        hosts=tuple((at - passed, change) for at, change in timeline.hosts if at >= passed),
    )
