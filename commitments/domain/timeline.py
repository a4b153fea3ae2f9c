"""What is known about future room: expiries, drains, planned hosts (spec liquid, 11.5, 20 row 6).

A timeline holds every known change of room in the order of time. The state after the first n
moments is a snapshot like any other, so the planner that decides a request now also says whether
the same request would fit then. When the first of them is: see ``first_fit``.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from itertools import groupby
from operator import itemgetter

import numpy as np

from capacity.figures.zone_capacity import zone_figures
from capacity.ledger.placing import place_slots, table_with_released
from capacity.ledger.slot_request import SlotAsk
from commitments.domain.admission import AdmissionSnapshot
from commitments.domain.cores_account import CoresLedger
from scheduling.columns import Int64Column
from scheduling.resources import ZERO, ResourceVector
from scheduling.table import HostTable

NO_ENTRIES: Int64Column = np.zeros(0, dtype=np.int64)
EFFECTIVE_COLUMNS = ("eff_memory_bytes", "eff_vcpus")


class HostEdit(StrEnum):
    """What happens to a host."""

    ADDED = "added"
    DRAINED = "drained"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Displaced:
    """A slot or VM that needs another host.

    Attributes:
        ask: What it asks of that host.
        ends_at: When the commitment of a slot ends; None for a VM and for a slot without an end.
    """

    ask: SlotAsk
    ends_at: datetime | None = None

    def has_ended(self, at: datetime) -> bool:
        """Whether it needs no room any more."""
        return self.ends_at is not None and self.ends_at <= at


@dataclass(frozen=True, slots=True, kw_only=True)
class Rehoused:
    """A slot or VM that found another host; until it ends it is in the way there."""

    displaced: Displaced
    host_id: int


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
    displaced: tuple[Displaced, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Aftermath:
    """What host changes leave behind for those that follow.

    Attributes:
        rehoused: What moved and has not ended.
        waiting: What found no room; the next change of hosts lets it try again.
        gone: Keys of hosts that went.
        originals: The hosts before any of them changed: what new hosts are like. None when none
            did.
    """

    rehoused: tuple[Rehoused, ...] = ()
    waiting: tuple[Displaced, ...] = ()
    gone: frozenset[int] = frozenset()
    originals: HostTable | None = None


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
    """Cores of a flavor group in a zone that a project no longer holds from a moment on."""

    moment: int
    flavor_group_name: str
    zone: str
    vcpus: int
    project_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """Known changes of room.

    Attributes:
        moments: Distinct times, ascending.
        releases: Slots that end, by moment.
        cores: Cores commitments that end, by moment.
        hosts: (moment, change), ascending.
        aftermath: What host changes before the first moment left behind.
    """

    moments: tuple[datetime, ...] = ()
    releases: Releases = field(default_factory=Releases)
    cores: tuple[CoresRelease, ...] = ()
    hosts: tuple[tuple[int, HostChange], ...] = ()
    aftermath: Aftermath = field(default_factory=Aftermath)


@dataclass(frozen=True, slots=True, kw_only=True)
class EditedSnapshot:
    """A snapshot after changes.

    Attributes:
        snapshot: What a plan is made on.
        aftermath: Where what was displaced is now.
    """

    snapshot: AdmissionSnapshot
    aftermath: Aftermath = field(default_factory=Aftermath)


def with_host_changes(
    snapshot: AdmissionSnapshot, changes: Sequence[HostChange], aftermath: Aftermath | None = None
) -> EditedSnapshot:
    """Return a snapshot after hosts came and went at one moment.

    A new host is an empty copy of one that exists. A host that goes has no room any more; when all
    of them are gone, what was on them is placed on the others, in the given order, and is in the
    way there. What found no room at an earlier change tries first; until then it is in nobody's
    way. Cores of the groups that the snapshot has a ledger for are counted again. Unknown host keys
    change nothing.

    Args:
        snapshot: Before.
        changes: What happens to hosts.
        aftermath: What earlier changes left behind.
    """
    before = aftermath or Aftermath()
    if not changes:
        return EditedSnapshot(snapshot=snapshot, aftermath=before)
    originals = before.originals or snapshot.hosts
    hosts = snapshot.hosts
    row_of_id = {int(host_id): row for row, host_id in enumerate(originals.host_ids)}
    added: list[tuple[int, str]] = []
    going: dict[int, int] = {}
    displaced: list[Displaced] = []
    for change in changes:
        row = row_of_id.get(change.host_id)
        if row is None:
            continue
        if change.edit is HostEdit.ADDED:
            added.append((row, change.name))
        elif change.host_id not in before.gone and change.host_id not in going:
            going[change.host_id] = row
            displaced.extend(change.displaced)
    if going:
        nothing = [0] * len(going)
        rows = list(going.values())
        hosts = hosts.replace_columns(rows, dict.fromkeys(EFFECTIVE_COLUMNS, nothing))
    hosts = _with_new_hosts(hosts, originals, added)
    again = [moved.displaced for moved in before.rehoused if moved.host_id in going]
    hosts, rehoused, waiting = _rehoused(hosts, [*before.waiting, *again, *displaced])
    stay = [moved for moved in before.rehoused if moved.host_id not in going]
    edited = replace(snapshot, hosts=hosts)
    return EditedSnapshot(
        snapshot=replace(edited, cores=counted_cores(edited)),
        aftermath=Aftermath(
            rehoused=(*stay, *rehoused),
            waiting=tuple(waiting),
            gone=before.gone.union(going),
            originals=originals,
        ),
    )


def _with_new_hosts(
    hosts: HostTable, originals: HostTable, added: Sequence[tuple[int, str]]
) -> HostTable:
    """Return the table with empty hosts, each like the one in its row was before any change.

    Their keys are below those of every other host, so that no two new hosts share one.
    """
    if not added:
        return hosts
    lowest = min(0, int(hosts.host_ids.min()))
    likes = [row for row, _ in added]
    table = hosts.with_copies(
        likes,
        names=[name for _, name in added],
        host_ids=range(lowest - 1, lowest - 1 - len(added), -1),
    )
    columns = {column: getattr(originals, column)[likes].tolist() for column in EFFECTIVE_COLUMNS}
    return table.replace_columns(range(len(hosts), len(table)), columns)


def _rehoused(
    hosts: HostTable, displaced: Sequence[Displaced]
) -> tuple[HostTable, list[Rehoused], list[Displaced]]:
    """Return the hosts with what found room on them, and what did and did not find any."""
    rehoused: list[Rehoused] = []
    waiting: list[Displaced] = []
    decisions = place_slots(hosts, [one.ask for one in displaced])
    for one, decision in zip(displaced, decisions, strict=True):
        if decision is None:
            continue
        if decision.host_id is None:
            waiting.append(one)
        else:
            rehoused.append(Rehoused(displaced=one, host_id=decision.host_id))
    return _with_taken(hosts, rehoused, sign=1), rehoused, waiting


def _with_taken(hosts: HostTable, rehoused: Iterable[Rehoused], *, sign: int) -> HostTable:
    """Return the hosts with what was rehoused taken from their room, or (-1) given back."""
    taken: dict[int, ResourceVector] = {}
    for moved in rehoused:
        slot = moved.displaced.ask.slot
        taken[moved.host_id] = taken.get(moved.host_id, ZERO) + ResourceVector(
            memory_bytes=sign * slot.memory_bytes, vcpus=sign * slot.vcpus
        )
    return table_with_released(hosts, taken)


def counted_cores(
    snapshot: AdmissionSnapshot, *, only_unknown: bool = False
) -> Mapping[tuple[str, str], CoresLedger]:
    """Return the cores ledgers of a snapshot with the cores of its hosts counted.

    A zone without hosts has nothing to count.

    Args:
        snapshot: Hosts, groups and ledgers.
        only_unknown: Whether to count those alone that nobody counted; else those that somebody
            did are counted again.
    """
    ledgers = dict(snapshot.cores)
    wanted = sorted(
        (zone, group)
        for (group, zone), ledger in ledgers.items()
        if group in snapshot.groups and (ledger.total_vcpus is None) == only_unknown
    )
    used = {snapshot.hosts.zones[code] for code in np.unique(snapshot.hosts.zone)}
    for zone, keys in groupby(wanted, key=itemgetter(0)):
        if zone not in used:
            continue
        groups = [snapshot.groups[group] for _zone, group in keys]
        counted = zone_figures(snapshot.hosts, zone, groups, snapshot.probes)
        for name, figures in counted.groups.items():
            ledger = ledgers[name, zone]
            ledgers[name, zone] = replace(ledger, total_vcpus=figures.total.vcpus)
    return ledgers


class Sweep:
    """Snapshots along a timeline; each change of hosts is applied once, to what there is then."""

    def __init__(self, snapshot: AdmissionSnapshot, timeline: Timeline) -> None:
        """Start at the present.

        Args:
            snapshot: The present, with a cores ledger for every group and zone asked about.
            timeline: What is known to come.
        """
        self._timeline = timeline
        self._turns = sorted({at for at, _change in timeline.hosts})
        present = EditedSnapshot(snapshot=snapshot, aftermath=timeline.aftermath)
        self._after_turn = [(-1, present)]

    def snapshot_at(self, moment: int) -> AdmissionSnapshot:
        """Return the snapshot right after a moment of the timeline, given by its index."""
        return self.state_at(moment).snapshot

    def state_at(self, moment: int) -> EditedSnapshot:
        """Return the snapshot right after a moment, and what changes of hosts left behind then."""
        turns = bisect_right(self._turns, moment)
        while len(self._after_turn) <= turns:
            turn = self._turns[len(self._after_turn) - 1]
            before = self._advanced(*self._after_turn[-1], to=turn)
            after = with_host_changes(before.snapshot, self._changes_at(turn), before.aftermath)
            self._after_turn.append((turn, after))
        return self._advanced(*self._after_turn[turns], to=moment)

    def _changes_at(self, turn: int) -> list[HostChange]:
        """Return the changes of hosts at a moment; what has ended by then needs no other host."""
        time = self._timeline.moments[turn]
        return [
            replace(
                change,
                displaced=tuple(one for one in change.displaced if not one.has_ended(time)),
            )
            for at, change in self._timeline.hosts
            if at == turn
        ]

    def _advanced(self, since: int, state: EditedSnapshot, *, to: int) -> EditedSnapshot:
        """Return the state after what ends later than one moment and not later than another."""
        if to <= since:
            return state
        time, snapshot, aftermath = self._timeline.moments[to], state.snapshot, state.aftermath
        ended = [moved for moved in aftermath.rehoused if moved.displaced.has_ended(time)]
        hosts = _with_released(snapshot.hosts, self._timeline.releases, since=since, to=to)
        return EditedSnapshot(
            snapshot=replace(
                snapshot,
                hosts=_with_taken(hosts, ended, sign=-1),
                cores=self._cores_at(snapshot, since=since, to=to),
            ),
            aftermath=replace(
                aftermath,
                rehoused=tuple(m for m in aftermath.rehoused if not m.displaced.has_ended(time)),
                waiting=tuple(one for one in aftermath.waiting if not one.has_ended(time)),
            ),
        )

    def _cores_at(
        self, base: AdmissionSnapshot, *, since: int, to: int
    ) -> Mapping[tuple[str, str], CoresLedger]:
        ledgers = dict(base.cores)
        for release in self._timeline.cores:
            key = (release.flavor_group_name, release.zone)
            if since < release.moment <= to and key in ledgers:
                ledgers[key] = ledgers[key].with_held(release.project_id, -release.vcpus)
        return ledgers


def _with_released(hosts: HostTable, releases: Releases, *, since: int, to: int) -> HostTable:
    begin = int(np.searchsorted(releases.moment, since, side="right"))
    end = int(np.searchsorted(releases.moment, to, side="right"))
    if begin == end:
        return hosts
    host_ids = releases.host_ids[begin:end]
    order = np.argsort(hosts.host_ids, kind="stable")
    ordered = hosts.host_ids[order]
    positions = np.searchsorted(ordered, host_ids)
    known = positions < len(ordered)
    known[known] = ordered[positions[known]] == host_ids[known]
    rows = order[positions[known]]
    memory_bytes = hosts.committed_memory_bytes.copy()
    vcpus = hosts.committed_vcpus.copy()
    np.subtract.at(memory_bytes, rows, releases.memory_bytes[begin:end][known])
    np.subtract.at(vcpus, rows, releases.vcpus[begin:end][known])
    touched = np.unique(rows)
    return hosts.replace_columns(
        touched,
        {
            "committed_memory_bytes": np.maximum(memory_bytes[touched], 0),
            "committed_vcpus": np.maximum(vcpus[touched], 0),
        },
    )


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
        aftermath=timeline.aftermath,
    )
