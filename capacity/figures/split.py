"""The exclusive split of free capacity between flavor groups (spec liquid, 13.7).

Groups that share hosts see the same free memory; the split gives every slot to one group. Groups
whose hosts nobody else can use are counted at once; the others take turns, see ``split_rounds``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from capacity.figures.split_rounds import RoundNeed, RoundRobin
from scheduling.capacity_count import slots_per_host
from scheduling.columns import Int64Column
from scheduling.resources import ZERO, ResourceVector


@dataclass(frozen=True, slots=True, kw_only=True)
class FlavorSlots:
    """How often a flavor fits into a zone.

    Attributes:
        memory_bytes: Memory of the flavor.
        vcpus: vCPUs of the flavor.
        slots: Sum over hosts of whole flavors.
    """

    memory_bytes: int
    vcpus: int
    slots: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupNeed:
    """What one group competes with.

    Attributes:
        memory_bytes: Memory of its smallest flavor, positive.
        vcpus: vCPUs of its smallest flavor, 0 or more.
        candidate_rows: Rows of its candidate hosts; order and repetition do not matter.
    """

    group: str
    memory_bytes: int
    vcpus: int
    candidate_rows: tuple[int, ...] | Int64Column

    def times(self, slots: int) -> ResourceVector:
        """Return the resources of that many slots."""
        return ResourceVector(memory_bytes=slots * self.memory_bytes, vcpus=slots * self.vcpus)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupShare:
    """What one group gets.

    Attributes:
        free_slots: Slots on its candidates if no other group took any.
        assigned_slots: Slots that are its own.
        free: Resources of the free slots.
        exclusive: Resources of the assigned slots.
    """

    free_slots: int
    assigned_slots: int
    free: ResourceVector
    exclusive: ResourceVector


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitResult:
    """The split of one zone.

    Attributes:
        shares: Group name to its share, in the order of the needs.
        slots_on: Group name to int64[N], its slots on each host.
        unassigned_rows: int64[R], rows of candidates with something left, ascending.
        unassigned_memory_bytes: int64[R], memory left on each of them.
        unassigned_vcpus: int64[R], vCPUs left on each of them.
    """

    shares: Mapping[str, GroupShare]
    slots_on: Mapping[str, Int64Column]
    unassigned_rows: Int64Column
    unassigned_memory_bytes: Int64Column
    unassigned_vcpus: Int64Column


def group_totals(flavors: Sequence[FlavorSlots]) -> ResourceVector:
    """Return the capacity of a group: the largest memory and the largest cores of its flavors.

    Each component is taken on its own, so both may come from different flavors.

    Source: spec liquid, 13.5.
    """
    totals = ZERO
    for flavor in flavors:
        totals = totals.maximum(
            ResourceVector(
                memory_bytes=flavor.slots * flavor.memory_bytes, vcpus=flavor.slots * flavor.vcpus
            )
        )
    return totals


def exclusive_split(
    remaining_memory: Int64Column,
    remaining_vcpus: Int64Column,
    host_names: Sequence[str],
    needs: Sequence[GroupNeed],
) -> SplitResult:
    """Divide what hosts have left between groups, round robin, so that no slot counts twice.

    Args:
        remaining_memory: int64[N], bytes left per host; negative counts as 0. Not changed.
        remaining_vcpus: int64[N], vCPUs left per host; negative counts as 0. Not changed.
        host_names: N names; the last tie-break between hosts.
        needs: The groups, names unique.

    Raises:
        ValueError: Columns differ in length, a group comes twice, a need has no memory or negative
            vCPUs, or a candidate row does not exist.

    Source: spec liquid, 13.7.
    """
    _check(remaining_memory, remaining_vcpus, host_names, needs)
    memory = np.maximum(np.asarray(remaining_memory, dtype=np.int64), 0)
    vcpus = np.maximum(np.asarray(remaining_vcpus, dtype=np.int64), 0)
    ordered = sorted(needs, key=lambda need: need.group)
    is_candidate = np.zeros((len(ordered), len(memory)), dtype=np.bool_)
    slots = np.zeros((len(ordered), len(memory)), dtype=np.int64)
    for position, need in enumerate(ordered):
        rows = np.asarray(need.candidate_rows, dtype=np.int64)
        is_candidate[position, rows] = True
        slots[position, rows] = slots_per_host(
            memory[rows], vcpus[rows], need.memory_bytes, need.vcpus
        )
    given = np.zeros_like(slots)
    for members in _components(slots > 0):
        if len(members) == 1:
            need, taken = ordered[members[0]], slots[members[0]]
            memory -= taken * need.memory_bytes
            vcpus -= taken * need.vcpus
            given[members[0]] = taken
        else:
            competing = [ordered[position] for position in members]
            given[members] = _take_turns(memory, vcpus, host_names, competing, slots[members] > 0)
    assigned = {need.group: int(given[position].sum()) for position, need in enumerate(ordered)}
    free = {need.group: int(slots[position].sum()) for position, need in enumerate(ordered)}
    has_rest = is_candidate.any(axis=0) & ((memory > 0) | (vcpus > 0))
    rest = np.flatnonzero(has_rest).astype(np.int64)
    return SplitResult(
        shares={need.group: _share(need, free, assigned) for need in needs},
        slots_on={need.group: given[position] for position, need in enumerate(ordered)},
        unassigned_rows=rest,
        unassigned_memory_bytes=memory[rest],
        unassigned_vcpus=vcpus[rest],
    )


def _check(
    memory: Int64Column, vcpus: Int64Column, host_names: Sequence[str], needs: Sequence[GroupNeed]
) -> None:
    host_count = len(host_names)
    if len(memory) != host_count or len(vcpus) != host_count:
        raise ValueError("the columns of the hosts differ in length")
    if len({need.group for need in needs}) != len(needs):
        raise ValueError("a flavor group comes twice")
    for need in needs:
        if need.memory_bytes <= 0 or need.vcpus < 0:
            raise ValueError(
                f"the smallest flavor of {need.group} needs memory, and no negative vCPUs"
            )
        rows = np.asarray(need.candidate_rows, dtype=np.int64)
        if len(rows) and not 0 <= rows.min() <= rows.max() < host_count:
            raise ValueError(f"a candidate of {need.group} is not a row of the hosts")


def _share(need: GroupNeed, free: Mapping[str, int], assigned: Mapping[str, int]) -> GroupShare:
    free_slots, assigned_slots = free[need.group], assigned[need.group]
    return GroupShare(
        free_slots=free_slots,
        assigned_slots=assigned_slots,
        free=need.times(free_slots),
        exclusive=need.times(assigned_slots),
    )


def _components(is_eligible: npt.NDArray[np.bool_]) -> list[list[int]]:
    """Return the groups (positions, ascending) that compete, directly or through others.

    Args:
        is_eligible: bool[groups, hosts].
    """
    counts = is_eligible.astype(np.float32)
    shares_hosts = (counts @ counts.T) > 0
    pending = list(range(len(is_eligible)))
    components = []
    while pending:
        members, frontier = {pending[0]}, [pending[0]]
        while frontier:
            neighbours = np.flatnonzero(shares_hosts[frontier.pop()]).tolist()
            fresh = [other for other in neighbours if other not in members]
            members.update(fresh)
            frontier.extend(fresh)
        components.append(sorted(members))
        pending = [position for position in pending if position not in members]
    return components


def _take_turns(
    memory: Int64Column,
    vcpus: Int64Column,
    host_names: Sequence[str],
    needs: Sequence[GroupNeed],
    is_eligible: npt.NDArray[np.bool_],
) -> Int64Column:
    """Run the rounds of one component; reduces the columns.

    Returns:
        int64[needs, hosts], the slots that each gets on each host.
    """
    rows = sorted(
        np.flatnonzero(is_eligible.any(axis=0)).tolist(), key=lambda row: (host_names[row], row)
    )
    rounds = RoundRobin(
        memory=memory[rows],
        vcpus=vcpus[rows],
        needs=[
            RoundNeed(
                memory_bytes=need.memory_bytes,
                vcpus=need.vcpus,
                eligible=np.flatnonzero(is_eligible[position, rows]).astype(np.int64),
            )
            for position, need in enumerate(needs)
        ],
    )
    given = np.zeros(is_eligible.shape, dtype=np.int64)
    given[:, rows] = rounds.run()
    memory[rows] = rounds.memory
    vcpus[rows] = rounds.vcpus
    return given
