"""Which freed slots go to which beginning commitments (spec liquid, 11.3 "Hand-over").

Slots pass on whole as far as amounts allow; what is still missing is cut off the others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from commitments.domain.subsets import PieceClass, ReachableSums

MAX_EXACT_STATES = 50_000


@dataclass(frozen=True, slots=True, kw_only=True)
class FreedSlot:
    """A slot that its commitment gives up.

    Attributes:
        project_id: Project it is held for.
        memory_bytes: Its memory in bytes, positive.
        has_allocations: Whether VMs are in it; then it cannot leave its project.
        is_placed: Whether it has a host.
        closed_to: Other projects, whose VMs its host would refuse.
    """

    slot_id: int
    project_id: str
    memory_bytes: int
    has_allocations: bool = False
    is_placed: bool = True
    closed_to: frozenset[str] = frozenset()

    def may_go_to(self, project_id: str) -> bool:
        """Whether a project may have it: its own, and others whose VMs could be there."""
        if project_id == self.project_id:
            return True
        return not self.has_allocations and project_id not in self.closed_to


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotDemand:
    """Memory that a commitment of the same flavor group and zone still needs.

    Attributes:
        commitment_uuid: The commitment, unique among the demands.
        memory_bytes: What it lacks in bytes.
    """

    commitment_uuid: str
    project_id: str
    memory_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Handover:
    """Who gets which slot.

    Attributes:
        new_owners: Mapping slot id -> commitment uuid, in the order of demands, then slots.
        leftover_ids: Slots nobody takes, in the order given.
        missing_bytes: Mapping commitment uuid -> bytes not covered, every demand present.
    """

    new_owners: Mapping[int, str]
    leftover_ids: tuple[int, ...]
    missing_bytes: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotCut:
    """A freed slot that several demands share, or that is larger than what one needs.

    Attributes:
        shares: Commitment uuid and bytes, positive, in the order in which they are cut off.
        rest_bytes: What nobody takes.
    """

    slot_id: int
    shares: tuple[tuple[str, int], ...]
    rest_bytes: int


def plan_handover(slots: Sequence[FreedSlot], demands: Sequence[SlotDemand]) -> Handover:
    """Give whole freed slots to demands without overshooting any.

    Each project first keeps what its own demands can use, then slots without VMs may go to other
    projects whose VMs their hosts would take. Slots with VMs come first, since their memory cannot
    be placed anew; then as much memory as possible is handed over. The search is exact for small
    inputs, and else fills one demand after the other as far as it goes.

    Args:
        slots: Freed slots of one flavor group and zone, in the order of the request.
        demands: Demands in that group and zone, in the order of the request.

    Source: spec liquid, 11.3.
    """
    missing = {demand.commitment_uuid: demand.memory_bytes for demand in demands}
    owners: dict[int, str] = {}
    for project_id in sorted({slot.project_id for slot in slots}):
        _assign(
            [slot for slot in slots if slot.project_id == project_id],
            [demand for demand in demands if demand.project_id == project_id],
            owners,
            missing,
        )
    movable = [
        slot
        for slot in slots
        if not slot.has_allocations
        and slot.slot_id not in owners
        and any(slot.may_go_to(demand.project_id) for demand in demands)
    ]
    _assign(movable, demands, owners, missing)
    order = {demand.commitment_uuid: position for position, demand in enumerate(demands)}
    ordered = sorted(
        (slot.slot_id for slot in slots if slot.slot_id in owners), key=lambda i: order[owners[i]]
    )
    return Handover(
        new_owners={slot_id: owners[slot_id] for slot_id in ordered},
        leftover_ids=tuple(slot.slot_id for slot in slots if slot.slot_id not in owners),
        missing_bytes=missing,
    )


def plan_cuts(slots: Sequence[FreedSlot], demands: Sequence[SlotDemand]) -> tuple[SlotCut, ...]:
    """Cut what demands still lack off slots that do not fit them whole.

    Each project first takes from its own slots: those with VMs, then those that fewest others could
    have. Then it takes from slots of other projects without VMs, where its own could be. Only slots
    with a host are cut: of others nothing is to be kept.

    Args:
        slots: Slots of one flavor group and zone that nobody takes whole.
        demands: What is still missing, in the order of the request.

    Returns:
        The slots of which something is taken, in the order given.

    Source: spec liquid, 11.3; decisions (split, merge, renewal).
    """
    missing = {demand.commitment_uuid: demand.memory_bytes for demand in demands}
    placed = [slot for slot in slots if slot.is_placed]
    left = {slot.slot_id: slot.memory_bytes for slot in placed}
    shares: dict[int, list[tuple[str, int]]] = {}
    for is_own in (True, False):
        for slot in sorted(placed, key=_cutting_order):
            for demand in demands:
                taken = min(left[slot.slot_id], missing[demand.commitment_uuid])
                if taken <= 0 or (slot.project_id == demand.project_id) is not is_own:
                    continue
                if slot.may_go_to(demand.project_id):
                    shares.setdefault(slot.slot_id, []).append((demand.commitment_uuid, taken))
                    left[slot.slot_id] -= taken
                    missing[demand.commitment_uuid] -= taken
    return tuple(
        SlotCut(
            slot_id=slot.slot_id,
            shares=tuple(shares[slot.slot_id]),
            rest_bytes=left[slot.slot_id],
        )
        for slot in placed
        if slot.slot_id in shares
    )


def _cutting_order(slot: FreedSlot) -> tuple[bool, int, int]:
    """Return a key that puts slots first that fewer projects could have."""
    return not slot.has_allocations, -len(slot.closed_to), -slot.memory_bytes


class _DemandRoom(NamedTuple):
    """What a demand still lacks, and who asks."""

    project_id: str
    memory_bytes: int


def _assign(
    slots: Sequence[FreedSlot],
    demands: Sequence[SlotDemand],
    owners: dict[int, str],
    missing: dict[str, int],
) -> None:
    rooms = [
        _DemandRoom(project_id=d.project_id, memory_bytes=missing[d.commitment_uuid])
        for d in demands
    ]
    chosen = _one_after_the_other(slots, rooms)
    if _score(slots, chosen) != _best_conceivable(slots, rooms):
        exact = _exact(slots, rooms)
        if exact is not None and _score(slots, exact) > _score(slots, chosen):
            chosen = exact
    for slot in slots:
        if slot.slot_id in chosen:
            uuid = demands[chosen[slot.slot_id]].commitment_uuid
            owners[slot.slot_id] = uuid
            missing[uuid] -= slot.memory_bytes


def _score(slots: Sequence[FreedSlot], chosen: Mapping[int, int]) -> tuple[int, int]:
    taken = [slot for slot in slots if slot.slot_id in chosen]
    with_vms_bytes = sum(slot.memory_bytes for slot in taken if slot.has_allocations)
    return with_vms_bytes, sum(slot.memory_bytes for slot in taken)


def _best_conceivable(slots: Sequence[FreedSlot], rooms: Sequence[_DemandRoom]) -> tuple[int, int]:
    room_bytes = sum(room.memory_bytes for room in rooms)
    with_vms_bytes = sum(slot.memory_bytes for slot in slots if slot.has_allocations)
    all_bytes = sum(slot.memory_bytes for slot in slots)
    return min(with_vms_bytes, room_bytes), min(all_bytes, room_bytes)


def _one_after_the_other(
    slots: Sequence[FreedSlot], rooms: Sequence[_DemandRoom]
) -> dict[int, int]:
    """Fill demands in order, each as far as it goes; return slot id -> position of the demand."""
    chosen: dict[int, int] = {}
    for position, room in enumerate(rooms):
        left_bytes = room.memory_bytes
        for has_vms in (True, False):
            offered = [
                slot
                for slot in slots
                if slot.has_allocations is has_vms
                and slot.slot_id not in chosen
                and slot.may_go_to(room.project_id)
            ]
            for slot in _fullest_subset(offered, left_bytes):
                chosen[slot.slot_id] = position
                left_bytes -= slot.memory_bytes
    return chosen


def _fullest_subset(slots: Sequence[FreedSlot], room_bytes: int) -> list[FreedSlot]:
    by_class: dict[tuple[bool, int], list[FreedSlot]] = {}
    for slot in sorted(slots, key=_preference):
        by_class.setdefault((slot.is_placed, slot.memory_bytes), []).append(slot)
    classes = [
        PieceClass(memory_bytes=memory_bytes, piece_count=len(members))
        for (_, memory_bytes), members in by_class.items()
    ]
    sums = ReachableSums(classes, room_bytes)
    counts = sums.piece_counts(sums.largest_at_most(room_bytes))
    return [
        slot
        for members, count in zip(by_class.values(), counts, strict=True)
        for slot in members[:count]
    ]


def _preference(slot: FreedSlot) -> tuple[bool, int, int]:
    return not slot.is_placed, -slot.memory_bytes, -len(slot.closed_to)


def _exact(slots: Sequence[FreedSlot], rooms: Sequence[_DemandRoom]) -> dict[int, int] | None:
    """Return the best assignment, None if there are too many to look at.

    A state is how many bytes each demand got. Of equal states the one of preferred slots stays.
    """
    states = {tuple(0 for _ in rooms)}
    layers: list[tuple[FreedSlot, dict[tuple[int, ...], tuple[tuple[int, ...], int]]]] = []
    state_count = 0
    for has_vms in (True, False):
        for slot in sorted((s for s in slots if s.has_allocations is has_vms), key=_preference):
            reached = _with_slot(states, rooms, slot)
            state_count += len(reached)
            if state_count > MAX_EXACT_STATES:
                return None
            layers.append((slot, reached))
            states = set(reached)
        most_bytes = max(sum(state) for state in states)
        states = {state for state in states if sum(state) == most_bytes}
    state = max(states)
    chosen: dict[int, int] = {}
    for slot, reached in reversed(layers):
        state, position = reached[state]
        if position >= 0:
            chosen[slot.slot_id] = position
    return chosen


def _with_slot(
    states: set[tuple[int, ...]], rooms: Sequence[_DemandRoom], slot: FreedSlot
) -> dict[tuple[int, ...], tuple[tuple[int, ...], int]]:
    """Return the states after offering one slot, each with the state before and who got it."""
    reached = {state: (state, -1) for state in states}
    open_rooms = [
        (position, room.memory_bytes)
        for position, room in enumerate(rooms)
        if slot.may_go_to(room.project_id)
    ]
    for state in sorted(states):
        for position, room_bytes in open_rooms:
            filled_bytes = state[position] + slot.memory_bytes
            if filled_bytes <= room_bytes:
                following = (*state[:position], filled_bytes, *state[position + 1 :])
                reached.setdefault(following, (state, position))
    return reached
