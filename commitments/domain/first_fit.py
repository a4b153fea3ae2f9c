"""When a refused batch fits: the first known moment (spec liquid, 11.5, 20 row 6).

One commitment fits from some room on, and room only grows between two changes of hosts, so
bisection finds the moment. Several commitments can be unlucky: the same batch may fit into less
room and not into more, since hosts are chosen for one commitment after the other. For those, every
moment before the one found is tried too, as far as they can be hoped to fit.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

import numpy as np

from capacity.groups.flavor_groups import FlavorGroupDef
from capacity.ledger.placing import table_with_released
from commitments.domain.admission import (
    AdmissionPlan,
    AdmissionSnapshot,
    CommitmentTarget,
    plan_admission,
)
from commitments.domain.timeline import Sweep, Timeline
from scheduling.table import HostTable

MOST_TRIED_SLOTS = 2_000
"""Slots placed in search of luck."""
LEAST_PLAN_SLOTS = 20
"""What a plan of fewer slots counts as: that much it costs anyway."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """The moment from which a request fits, and the plan that shows it."""

    at: datetime
    plan: AdmissionPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class _NewSlots:
    """The slots for which a plan looks for hosts.

    Attributes:
        count: How many.
        memory_bytes: Zone to the memory of all of them there.
        grows_with_room: Whether they fit into more room if they fit into less: one commitment's do,
            and so do whole slots of one smallest flavor.
    """

    count: int
    memory_bytes: Mapping[str, int]
    grows_with_room: bool


def first_fit(
    snapshot: AdmissionSnapshot, targets: Sequence[CommitmentTarget], timeline: Timeline
) -> Fit | None:
    """Return the first known moment at which a batch that is refused now would be accepted.

    What is returned fits. No earlier moment does, unless the batch has several commitments and more
    slots than are worth trying at every moment (``MOST_TRIED_SLOTS``); then it does not fit
    at the moment before.

    Args:
        targets: The batch; moments at or after the end of any of them are not looked at.
        timeline: What is known to come.

    Source: spec liquid, 11.5 (``retryAt``).
    """
    last = _last_moment(targets, timeline)
    if last < 0:
        return None
    search = _Search(snapshot, targets, timeline)
    starts = sorted({0, *(at for at, _change in timeline.hosts)})
    for start, following in zip(starts, [*starts[1:], last + 1], strict=True):
        end = min(following - 1, last)
        found = search.between(start, end) if start <= end else None
        if found is not None:
            return found
    return None


def _last_moment(targets: Sequence[CommitmentTarget], timeline: Timeline) -> int:
    """Return the index of the last moment before the first end of a batch, -1 when there is none.

    The batch asks for nothing at its end any more.
    """
    last = len(timeline.moments) - 1
    for target in targets:
        end = target.desired.end_time if target.desired is not None and target.is_holding else None
        if end is not None:
            last = min(last, bisect_left(timeline.moments, end) - 1)
    return last


class _Search:
    """Plans of one batch along a timeline."""

    def __init__(
        self, snapshot: AdmissionSnapshot, targets: Sequence[CommitmentTarget], timeline: Timeline
    ) -> None:
        self._targets = targets
        self._groups = snapshot.groups
        self._moments = timeline.moments
        self._sweep = Sweep(snapshot, timeline)
        self._slots_left = MOST_TRIED_SLOTS

    def between(self, start: int, end: int) -> Fit | None:
        """Return the first fit from one moment to another, both included, with no host change.

        Hosts may change at ``start``.
        """
        plan = self._plan_at(end)
        new_slots = _new_slots_of(plan, self._groups)
        hopeful = _first_true(
            start,
            end,
            lambda m: _may_fit(
                table_with_released(
                    self._sweep.snapshot_at(m).hosts, plan.freed_blocks, plan.freed_needs
                ),
                new_slots,
            ),
        )
        if hopeful is None:
            return None
        found, border = None, end
        if not plan.rejections:
            found, border = self._bisected(hopeful, end, Fit(at=self._moments[end], plan=plan))
        if new_slots.grows_with_room:
            return found
        return self._lucky(hopeful, border, new_slots.count) or found

    def _bisected(self, low: int, high: int, found: Fit) -> tuple[Fit, int]:
        while low < high:
            middle = (low + high) // 2
            earlier = self._fit_at(middle)
            if earlier is None:
                low = middle + 1
            else:
                found, high = earlier, middle
        return found, high

    def _lucky(self, start: int, before: int, slot_count: int) -> Fit | None:
        """Return the first fit before a moment, as far as slots may still be tried."""
        for moment in range(start, before):
            self._slots_left -= max(LEAST_PLAN_SLOTS, slot_count)
            if self._slots_left < 0:
                return None
            fit = self._fit_at(moment)
            if fit is not None:
                return fit
        return None

    def _fit_at(self, moment: int) -> Fit | None:
        plan = self._plan_at(moment)
        return None if plan.rejections else Fit(at=self._moments[moment], plan=plan)

    def _plan_at(self, moment: int) -> AdmissionPlan:
        snapshot = self._sweep.snapshot_at(moment)
        return plan_admission(snapshot, self._targets, may_reject=True, now=self._moments[moment])


def _first_true(start: int, end: int, is_true: Callable[[int], bool]) -> int | None:
    """Return the first number from which on something is true, None when it is not at the end."""
    if not is_true(end):
        return None
    while start < end:
        middle = (start + end) // 2
        if is_true(middle):
            end = middle
        else:
            start = middle + 1
    return start


def _new_slots_of(plan: AdmissionPlan, groups: Mapping[str, FlavorGroupDef]) -> _NewSlots:
    asked = [
        (placement, decision.target.desired)
        for decision in plan.decisions
        for placement in decision.placements
        if placement.vm is None and decision.target.desired is not None
    ]
    kinds = {
        (placement.resource_name, placement.slot, desired.flavor_group_name, desired.project_id)
        for placement, desired in asked
    }
    memory_bytes: dict[str, int] = {}
    for placement, desired in asked:
        placed_bytes = placement.slot.memory_bytes
        memory_bytes[desired.zone] = memory_bytes.get(desired.zone, 0) + placed_bytes
    smallest = {
        (group.smallest.name, group.smallest.memory_bytes, name) for name, group in groups.items()
    }
    are_smallest = len(kinds) == 1 and all(
        (name, slot.memory_bytes, group) in smallest for name, slot, group, _project in kinds
    )
    return _NewSlots(
        count=len(asked),
        memory_bytes=memory_bytes,
        grows_with_room=are_smallest
        or len({desired.commitment_uuid for _placement, desired in asked}) <= 1,
    )


def _may_fit(hosts: HostTable, new_slots: _NewSlots) -> bool:
    """Return whether there is hope: as much memory as all slots take, on hosts with vCPUs left.

    More room never takes hope away, and a batch that fits has it.
    """
    free_memory_bytes = np.where(hosts.free_vcpus() > 0, hosts.free_memory_bytes(), 0)
    for zone, wanted_bytes in new_slots.memory_bytes.items():
        if zone not in hosts.zones:
            continue
        here = hosts.zone == hosts.zones.index(zone)
        if int(np.maximum(free_memory_bytes[here], 0).sum(dtype=np.int64)) < wanted_bytes:
            return False
    return True
