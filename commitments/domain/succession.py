"""Which slots pass from ending to beginning commitments of a batch (spec liquid, 11.3)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING

from commitments.domain.handover import FreedSlot, SlotDemand, plan_handover
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
    freed: dict[tuple[str, str], list[SlotView]] = {}
    demands: dict[tuple[str, str], list[CommitmentTarget]] = {}
    for target in targets:
        if not _holds_slots(target):
            kept[target.commitment_uuid] = ()
            for slot in target.slots:
                freed.setdefault((slot.flavor_group_name, slot.zone), []).append(slot)
            continue
        kept[target.commitment_uuid] = _moved_along(target)
        desired = target.desired
        if desired is not None and desired.status is not None and desired.status.is_active:
            place = (desired.flavor_group_name, desired.zone)
            demands.setdefault(place, []).append(target)
    handovers: list[SlotHandover] = []
    surplus_ids: list[int] = []
    for place, slots in sorted(freed.items()):
        takers = {target.commitment_uuid: target for target in demands.get(place, [])}
        outcome = plan_handover(
            [_freed(slot) for slot in slots],
            [
                SlotDemand(
                    commitment_uuid=target.commitment_uuid,
                    project_id=_project_of(target),
                    memory_bytes=_missing_bytes(target, kept[target.commitment_uuid], now),
                )
                for target in takers.values()
            ],
        )
        surplus_ids.extend(outcome.leftover_ids)
        by_id = {slot.slot_id: slot for slot in slots}
        for slot_id, uuid in outcome.new_owners.items():
            received = _received(by_id[slot_id], takers[uuid], kept[uuid])
            kept[uuid] += (received,)
            handovers.append(
                SlotHandover(slot_id=slot_id, commitment_uuid=uuid, slot_index=received.slot_index)
            )
    return Succession(kept=kept, handovers=tuple(handovers), surplus_ids=tuple(sorted(surplus_ids)))


def _freed(slot: SlotView) -> FreedSlot:
    return FreedSlot(
        slot_id=slot.slot_id,
        project_id=slot.project_id,
        memory_bytes=slot.memory_bytes,
        has_allocations=slot.has_allocations,
        is_placed=slot.target_host is not None,
    )


def _received(slot: SlotView, taker: CommitmentTarget, kept: Sequence[SlotView]) -> SlotView:
    """Return the slot as the taker's next one; gaps in its numbers are never filled."""
    desired = taker.desired
    assert desired is not None  # noqa: S101 - takers have a desired state
    taken_indexes = [own.slot_index for own in (*taker.slots, *kept)]
    return replace(
        slot,
        commitment_uuid=taker.commitment_uuid,
        slot_index=max(taken_indexes, default=-1) + 1,
        project_id=desired.project_id,
        domain_id=desired.domain_id,
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


def _project_of(target: CommitmentTarget) -> str:
    return target.desired.project_id if target.desired is not None else ""


def _missing_bytes(target: CommitmentTarget, own: Sequence[SlotView], now: datetime) -> int:
    desired = target.desired
    assert desired is not None  # noqa: S101 - takers have a desired state
    usable_bytes = sum(
        slot.memory_bytes
        for slot in own
        if slot.project_id == desired.project_id
        and slot.flavor_group_name == desired.flavor_group_name
        and slot.zone == desired.zone
    )
    return max(0, desired.effective_memory_bytes(now) - usable_bytes)
