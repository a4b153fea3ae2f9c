"""Which slots pass from ending to beginning commitments of a batch (spec liquid, 11.3)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING

from commitments.domain.planner import SlotView
from commitments.domain.statuses import ResourceType

if TYPE_CHECKING:
    from commitments.domain.admission import CommitmentTarget


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotHandover:
    """A stored slot that changes its commitment.

    Attributes:
        slot_id: Database key of the slot.
        commitment_uuid: New owner.
        slot_index: Its index there.
    """

    slot_id: int
    commitment_uuid: str
    slot_index: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Succession:
    """Slots of a batch after hand-over.

    Attributes:
        kept: Commitment uuid to the slots it starts planning with, own and received.
        handovers: What changed hands.
        surplus_ids: Slots that nobody takes over, to be released; sorted.
    """

    kept: dict[str, tuple[SlotView, ...]]
    handovers: tuple[SlotHandover, ...]
    surplus_ids: tuple[int, ...]


@dataclass(slots=True, kw_only=True)
class _Demand:
    target: CommitmentTarget
    missing_bytes: int
    next_index: int
    received: list[SlotView]


def hand_over_slots(targets: Sequence[CommitmentTarget], now: datetime) -> Succession:
    """Offer the slots of ending commitments to those that begin to be promised.

    Whole slots pass on, with their VMs within a project, and only without VMs between projects, as
    far as amounts allow: first within each project, then between projects, both in the order of the
    batch. A commitment that moves to another project keeps its slots without VMs.

    Args:
        targets: The batch, in order.
        now: The present, decides what is claimed.

    Source: spec liquid, 11.3; decisions (confirmed move between projects).
    """
    kept: dict[str, tuple[SlotView, ...]] = {}
    pool: list[SlotView] = []
    demands: list[_Demand] = []
    for target in targets:
        if not _holds_slots(target):
            kept[target.commitment_uuid] = ()
            pool.extend(target.slots)
            continue
        own = _moved_along(target)
        kept[target.commitment_uuid] = own
        demand = _demand(target, own, now)
        if demand is not None:
            demands.append(demand)
    handovers: list[SlotHandover] = []
    for may_cross_projects in (False, True):
        pool = _pass_on(pool, demands, handovers, may_cross_projects=may_cross_projects)
    for demand in demands:
        kept[demand.target.commitment_uuid] += tuple(demand.received)
    return Succession(
        kept=kept,
        handovers=tuple(handovers),
        surplus_ids=tuple(sorted(slot.slot_id for slot in pool)),
    )


def _holds_slots(target: CommitmentTarget) -> bool:
    return (
        target.is_holding
        and target.desired is not None
        and target.desired.resource_type is ResourceType.MEMORY
    )


def _moved_along(target: CommitmentTarget) -> tuple[SlotView, ...]:
    """Return the own slots; those without VMs follow their commitment to another project."""
    desired = target.desired
    assert desired is not None  # noqa: S101 - a holding target has a desired state
    return tuple(
        replace(slot, project_id=desired.project_id, domain_id=desired.domain_id)
        if not slot.has_allocations and slot.project_id != desired.project_id
        else slot
        for slot in target.slots
    )


def _demand(target: CommitmentTarget, own: Sequence[SlotView], now: datetime) -> _Demand | None:
    desired = target.desired
    if desired is None or desired.status is None or not desired.status.is_active:
        return None
    usable_bytes = sum(
        slot.memory_bytes
        for slot in own
        if slot.project_id == desired.project_id
        and slot.flavor_group_name == desired.flavor_group_name
        and slot.zone == desired.zone
    )
    missing_bytes = desired.effective_memory_bytes(now) - usable_bytes
    if missing_bytes <= 0:
        return None
    return _Demand(
        target=target,
        missing_bytes=missing_bytes,
        next_index=max((slot.slot_index for slot in target.slots), default=-1) + 1,
        received=[],
    )


def _pass_on(
    pool: Sequence[SlotView],
    demands: Sequence[_Demand],
    handovers: list[SlotHandover],
    *,
    may_cross_projects: bool,
) -> list[SlotView]:
    """Hand slots over, those with VMs and large ones first; return what is left of the pool."""
    by_place: defaultdict[tuple[str, ...], list[SlotView]] = defaultdict(list)
    for slot in pool:
        by_place[_place(slot, may_cross_projects=may_cross_projects)].append(slot)
    taken: set[int] = set()
    for demand in demands:
        desired = demand.target.desired
        assert desired is not None  # noqa: S101 - demands have a desired state
        place = (desired.flavor_group_name, desired.zone)
        offers = by_place[place if may_cross_projects else (*place, desired.project_id)]
        for slot in sorted(offers, key=_preference):
            fits = slot.slot_id not in taken and slot.memory_bytes <= demand.missing_bytes
            if not fits or (may_cross_projects and slot.has_allocations):
                continue
            taken.add(slot.slot_id)
            demand.missing_bytes -= slot.memory_bytes
            demand.received.append(
                replace(
                    slot,
                    commitment_uuid=demand.target.commitment_uuid,
                    slot_index=demand.next_index,
                    project_id=desired.project_id,
                    domain_id=desired.domain_id,
                )
            )
            handovers.append(
                SlotHandover(
                    slot_id=slot.slot_id,
                    commitment_uuid=demand.target.commitment_uuid,
                    slot_index=demand.next_index,
                )
            )
            demand.next_index += 1
    return [slot for slot in pool if slot.slot_id not in taken]


def _place(slot: SlotView, *, may_cross_projects: bool) -> tuple[str, ...]:
    place = (slot.flavor_group_name, slot.zone)
    return place if may_cross_projects else (*place, slot.project_id)


def _preference(slot: SlotView) -> tuple[bool, bool, int, int]:
    return not slot.has_allocations, slot.target_host is None, -slot.memory_bytes, slot.slot_id
