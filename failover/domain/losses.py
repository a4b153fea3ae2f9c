"""What the loss of many hosts does, counted on columns (spec failover, 17.2).

A VM that no slot can take is counted where it stands: of a whole zone these are all. Only those
that have a chance become objects of a drill, which gives the slots out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from failover.domain.drill import DrillResult, Unprotected, UnprotectedReason, simulate
from failover.domain.drill_columns import drill_state_of
from failover.domain.zone_columns import BoolColumn, Int64Column, ZoneSnapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """What a page shows of a drill: a zone has tens of thousands of VMs, of which it names few.

    Attributes:
        failed_hosts: Names of all hosts that fail, sorted.
        saved: How many VMs have a slot to go to.
        lost: How many VMs are owed a slot and get none.
        shown: The first of these, by reason and uuid.
        reasons: Why, and how many.
        taken: Hosts that take VMs, and how many.
    """

    failed_hosts: tuple[str, ...]
    saved: int
    lost: int
    shown: tuple[Unprotected, ...]
    reasons: Mapping[str, int]
    taken: Mapping[str, int]

    @classmethod
    def of(cls, result: DrillResult, *, most: int) -> Loss:
        """Count what a drill says.

        Args:
            most: How many lost VMs to name.
        """
        return cls(
            failed_hosts=result.failed_hosts,
            saved=len(result.assignments),
            lost=len(result.unprotected),
            shown=tuple(sorted(result.unprotected, key=_order)[:most]),
            reasons=result.reasons,
            taken=Counter(row.to_host for row in result.assignments),
        )


def loss_of(snapshots: Sequence[ZoneSnapshot], failing: Collection[str], *, most: int) -> Loss:
    """Return what happens when hosts fail at the same time.

    Args:
        snapshots: Their zones, or what of these they touch.
        failing: Their names; those that are in no zone are passed over.
        most: How many lost VMs to name.
    """
    names = frozenset(failing)
    if _shares_vms(snapshots, names):
        state = drill_state_of(snapshots, failing=names)
        return Loss.of(simulate(state, sorted(names & state.hosts.keys())), most=most)
    chances = [_Chances.of(snapshot, names) for snapshot in snapshots]
    failed = sorted(name for one in snapshots for name in one.hosts.names if name in names)
    state = drill_state_of(snapshots, chosen=[one.has_chance for one in chances])
    drilled = Loss.of(simulate(state, failed), most=most)
    reasons = Counter(drilled.reasons)
    shown = list(drilled.shown)
    for one in chances:
        for reason, is_lost in one.lost():
            count = int(np.count_nonzero(is_lost))
            if count:
                reasons[reason.value] += count
                shown += one.named(reason, is_lost, most)
    return Loss(
        failed_hosts=drilled.failed_hosts,
        saved=drilled.saved,
        lost=sum(reasons.values()),
        shown=tuple(sorted(shown, key=_order)[:most]),
        reasons=reasons,
        taken=drilled.taken,
    )


def _order(row: Unprotected) -> tuple[str, str]:
    return row.reason.value, row.vm


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Chances:
    """The VMs of a zone by whether some slot could take them.

    Attributes:
        required: int64[V], slots owed.
        slots: int64[V], slots that each VM on a failing host has.
        is_affected: bool[V], whether its host fails.
        has_live: bool[V], whether one of its slots is on a host that lives.
        has_chance: bool[V], whether one of these could take it, were it not for others.
        is_whole: Whether all hosts of the zone fail.
    """

    snapshot: ZoneSnapshot
    required: Int64Column
    slots: Int64Column
    is_affected: BoolColumn
    has_live: BoolColumn
    has_chance: BoolColumn
    is_whole: bool

    @classmethod
    def of(cls, snapshot: ZoneSnapshot, failing: Collection[str]) -> _Chances:
        hosts, vms, slots, members = (
            snapshot.hosts,
            snapshot.vms,
            snapshot.slots,
            snapshot.members,
        )
        fails = np.array([name in failing for name in hosts.names], dtype=np.bool_)
        lives = _with_none(hosts.is_ready & ~fails)
        is_affected: BoolColumn = _with_none(fails)[vms.host]
        slot, vm = members.slot, members.vm
        place = slots.host[slot]
        is_held = (place >= 0) & is_affected[vm]
        is_live = is_held & lives[place]
        is_usable = is_live & snapshot.can_take
        count = len(vms)
        return cls(
            snapshot=snapshot,
            required=np.where(vms.is_owed, vms.required, 0).astype(np.int64),
            slots=np.bincount(vm[is_held], minlength=count).astype(np.int64),
            is_affected=is_affected,
            has_live=np.bincount(vm[is_live], minlength=count) > 0,
            has_chance=np.bincount(vm[is_usable], minlength=count) > 0,
            is_whole=bool(fails.all()),
        )

    def lost(self) -> Iterator[tuple[UnprotectedReason, BoolColumn]]:
        """Yield why VMs without a chance are lost, and bool[V], which ones."""
        has_slots = self.slots > 0
        is_lost = self.is_affected & ~self.has_chance & ((self.required > 0) | has_slots)
        yield UnprotectedReason.NOT_FIT, is_lost & self.has_live
        is_lost &= ~self.has_live
        has_none_left = is_lost if self.is_whole else is_lost & ~has_slots
        yield UnprotectedReason.NO_SLOTS, has_none_left
        yield UnprotectedReason.ALL_SLOT_HOSTS_FAILED, is_lost & ~has_none_left

    def named(
        self, reason: UnprotectedReason, is_lost: BoolColumn, most: int
    ) -> Iterator[Unprotected]:
        """Yield the first lost VMs by uuid."""
        for row in np.flatnonzero(is_lost)[:most].tolist():
            yield Unprotected(
                vm=self.snapshot.vms.uuids[row],
                required=int(self.required[row]),
                slots=int(self.slots[row]),
                reason=reason,
            )


def _with_none(column: BoolColumn) -> BoolColumn:
    """Return bool[H + 1]: the last one stands for no host, which is -1."""
    return np.append(column, False)


def _shares_vms(snapshots: Sequence[ZoneSnapshot], failing: Collection[str]) -> bool:
    """Return whether a VM on a failing host has slots in another zone than its own."""
    if len(snapshots) == 1:
        return False
    on_failing = {
        uuid
        for one in snapshots
        for uuid, host in zip(one.vms.uuids, one.vms.host.tolist(), strict=True)
        if host >= 0 and one.hosts.names[host] in failing
    }
    return any(
        one.vms.uuids[row] in on_failing
        for one in snapshots
        for row in set(one.members.vm[one.vms.host[one.members.vm] < 0].tolist())
    )
