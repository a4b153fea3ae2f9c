"""Replacing empty slots of sizes that no flavor has any more (spec commitments, 6.7)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

from capacity.groups.flavor_groups import FlavorGroupDef
from commitments.domain.payg import PaygVM
from commitments.domain.planner import (
    NewSlot,
    PlanOutcome,
    SlotPlan,
    SlotView,
    count_new_slots,
    new_slots,
    plan_slots,
    select_flavor,
)
from commitments.domain.state import CommitmentState

SlotSize = tuple[str, int, int]
"""Name of the flavor, memory in bytes, vCPUs."""

MOST_RENEWED_SLOTS = 10_000
"""More slots than this are not made in place of old ones at once."""


def outdated_slots(slots: Sequence[SlotView], group: FlavorGroupDef) -> tuple[SlotView, ...]:
    """Return the slots at rest whose size is not what the planner would build now, by slot index.

    A slot as large as its own flavor is always what it would build. Of the others it would build
    one at most: the remainder that is smaller than every flavor. Slots with VMs, slots on their way
    to another host, and slots cut off larger ones are never among them.

    Args:
        slots: All slots of one commitment, of the group.
        group: Flavor group with at least one flavor.

    Source: spec commitments, 6.2, 6.7.
    """
    whole = _whole_sizes(group)
    odd = [
        slot
        for slot in sorted(slots, key=lambda slot: (slot.slot_index, slot.slot_id))
        if slot.is_resting
        and not slot.is_divided
        and not slot.has_allocations
        and _size_of(slot) not in whole
    ]
    remainder = _remainder_size(group, sum(slot.memory_bytes for slot in odd))
    kept_id = next((slot.slot_id for slot in odd if _size_of(slot) == remainder), None)
    return tuple(slot for slot in odd if slot.slot_id != kept_id)


def are_up_to_date(slots: Sequence[NewSlot], group: FlavorGroupDef) -> bool:
    """Return whether new slots would not be outdated: hosts may be so full that they must be odd.

    Source: spec commitments, 6.2, 6.7.
    """
    whole = _whole_sizes(group)
    sizes = [(slot.resource_name, slot.memory_bytes, slot.vcpus) for slot in slots]
    odd = [size for size in sizes if size not in whole]
    return not odd or odd == [_remainder_size(group, sum(memory for _, memory, _ in odd))]


def plan_renewal(
    existing: Sequence[SlotView],
    desired: CommitmentState,
    group: FlavorGroupDef | None,
    *,
    now: datetime,
    max_slots: int = 0,
    payg: Sequence[PaygVM] = (),
) -> PlanOutcome:
    """Plan the slots of one commitment, with outdated ones replaced by what is built now.

    Only a commitment whose slots are right otherwise is renewed; any other gets its ordinary plan.
    Planning again after applying gives an empty plan.

    Args:
        existing: All slots of the commitment.
        group: Its flavor group, None if unknown.
        now: The present, decides what is claimed.
        max_slots: Most slots to create; 0 means no limit. In place of old ones never more than
            ``MOST_RENEWED_SLOTS``: with more nothing is renewed.
        payg: Running VMs that slots may be made for, never in place of old ones.

    Source: spec commitments, 6.3, 6.7.
    """
    plan = plan_slots(existing, desired, group, now=now, max_slots=max_slots, payg=payg)
    if group is None or not isinstance(plan, SlotPlan):
        return plan
    if plan.removed_ids or plan.creates or plan.shrinks or not existing:
        return plan
    old = outdated_slots(existing, group)
    old_bytes = sum(slot.memory_bytes for slot in old)
    if not old or count_new_slots(group, old_bytes) > (max_slots or MOST_RENEWED_SLOTS):
        return plan
    old_ids = {slot.slot_id for slot in old}
    next_index = max(slot.slot_index for slot in existing) + 1
    creates = new_slots(group, old_bytes, next_index, desired.slot_prefix)
    return replace(
        plan,
        renew_ids=tuple(slot.slot_id for slot in old),
        creates=creates,
        updates=tuple(update for update in plan.updates if update.slot_id not in old_ids),
        total_slots=len(existing) - len(old) + len(creates),
    )


def _whole_sizes(group: FlavorGroupDef) -> set[SlotSize]:
    return {(flavor.name, flavor.memory_bytes, flavor.vcpus) for flavor in group.flavors}


def _size_of(slot: SlotView) -> SlotSize:
    return slot.resource_name, slot.memory_bytes, slot.vcpus


def _remainder_size(group: FlavorGroupDef, amount_bytes: int) -> SlotSize | None:
    """Return the size of the slot that is smaller than every flavor; None if none is needed."""
    while amount_bytes > 0:
        flavor, memory_bytes = select_flavor(group, amount_bytes)
        if memory_bytes != flavor.memory_bytes:
            return flavor.name, memory_bytes, flavor.vcpus
        amount_bytes %= memory_bytes
    return None
