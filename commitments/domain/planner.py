"""Slot planner: which slots a commitment needs, keeps and gives up (spec commitments, 6)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from capacity.groups.flavor_groups import FlavorGroupDef, FlavorSpec
from capacity.ledger.slot_request import slot_name
from commitments.domain.payg import Adoption, PaygVM, adopt_vms
from commitments.domain.state import CommitmentState
from commitments.domain.subsets import PieceClass, ReachableSums


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotView:
    """A slot of the commitment as it is now.

    Attributes:
        slot_id: Key of its row.
        slot_index: Its number in the commitment.
        project_id: Project it is held for.
        domain_id: Domain of the project.
        memory_bytes: Its memory in bytes, positive.
        resource_name: Flavor it is placed as.
        target_host: Host it is placed on, None if unplaced.
        has_allocations: Whether VMs are expected or confirmed in it.
        allocated_memory_bytes: Memory of those VMs in bytes.
        start_time: When it takes effect.
        end_time: When it ends; None for never.
        parent_generation: Generation of the commitment when it was last written.
        commitment_uuid: Commitment it belongs to.
        is_resting: Whether no VM is listed in it and it is not on its way to another host.
        is_divided: Whether it was cut off a larger slot: then no flavor need be as large.
    """

    slot_id: int
    slot_index: int
    project_id: str
    domain_id: str
    flavor_group_name: str
    zone: str
    memory_bytes: int
    vcpus: int
    resource_name: str
    target_host: str | None = None
    has_allocations: bool = False
    allocated_memory_bytes: int = 0
    start_time: datetime | None = None
    end_time: datetime | None = None
    parent_generation: int = 0
    commitment_uuid: str = ""
    is_resting: bool = False
    is_divided: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class NewSlot:
    """A slot to create, not placed yet.

    Attributes:
        slot_index: Its number in the commitment.
        resource_name: Flavor it is placed as.
        memory_bytes: Its memory in bytes.
        vm: Running VM that it is made for, on the host of which it is; None asks for a host.
    """

    slot_index: int
    name: str
    resource_name: str
    memory_bytes: int
    vcpus: int
    vm: PaygVM | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotShrink:
    """A slot with VMs that keeps its host but gives up a part.

    Attributes:
        slot_id: Key of its row.
        memory_bytes: Its memory afterwards in bytes, less than before.
        vcpus: Its vCPUs afterwards: the same share as of the memory, rounded up.
    """

    slot_id: int
    memory_bytes: int
    vcpus: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotUpdate:
    """Metadata to write to a slot that stays; all values are those wanted afterwards.

    Attributes:
        slot_id: Key of its row.
        commitment_uuid: Commitment it belongs to.
        domain_id: Domain of the project.
        start_time: When it takes effect.
        end_time: When it ends; None for never.
        parent_generation: Generation of the commitment.
    """

    slot_id: int
    commitment_uuid: str
    domain_id: str
    start_time: datetime | None
    end_time: datetime | None
    parent_generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotPlan:
    """What to do with the slots of one commitment; nothing else may change.

    Attributes:
        repair_ids: Slots to delete because project, group or zone is wrong, or since no host can be
            asked for them, by slot index.
        delete_ids: Slots to delete because they are surplus, by slot index.
        renew_ids: Empty slots to replace because no flavor has their size now, by slot index.
        cut_ids: Slots that found no host as large as they are, to replace by smaller ones.
        creates: Slots to create, by slot index.
        shrinks: Slots to shrink in place, by slot index.
        updates: Slots whose metadata to write, by slot index.
        total_slots: How many slots must exist afterwards.
    """

    repair_ids: tuple[int, ...] = ()
    delete_ids: tuple[int, ...] = ()
    renew_ids: tuple[int, ...] = ()
    cut_ids: tuple[int, ...] = ()
    creates: tuple[NewSlot, ...] = ()
    shrinks: tuple[SlotShrink, ...] = ()
    updates: tuple[SlotUpdate, ...] = ()
    total_slots: int = 0

    @property
    def created(self) -> int:
        """How many slots are created."""
        return len(self.creates)

    @property
    def removed_ids(self) -> tuple[int, ...]:
        """All slots to delete."""
        return self.repair_ids + self.delete_ids + self.renew_ids + self.cut_ids


@dataclass(frozen=True, slots=True, kw_only=True)
class FlavorGroupNotFound:
    """The commitment's flavor group is unknown."""

    group_name: str

    @property
    def message(self) -> str:
        """The text told to the caller."""
        return f"flavor group not found: {self.group_name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class FlavorGroupEmpty:
    """The commitment's flavor group has no flavors."""

    group_name: str

    @property
    def message(self) -> str:
        """The text told to the caller."""
        return f"flavor group has no flavors: {self.group_name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotLimitExceeded:
    """The commitment would create more slots than allowed.

    Attributes:
        new_slots: How many it would create.
        limit: How many it may create.
    """

    new_slots: int
    limit: int

    @property
    def message(self) -> str:
        """The text told to the caller (spec liquid, 11.5)."""
        return (
            f"commitment would create {self.new_slots} new reservation slots, "
            f"exceeds limit of {self.limit}"
        )


PlanOutcome = SlotPlan | FlavorGroupNotFound | FlavorGroupEmpty | SlotLimitExceeded


def select_flavor(group: FlavorGroupDef, delta_bytes: int) -> tuple[FlavorSpec, int]:
    """Return the flavor of the next slot and the slot's memory in bytes.

    The largest flavor whose memory fits; if none fits, the smallest one with a slot of exactly
    ``delta_bytes``. Only memory counts.

    Args:
        group: Group with at least one flavor.
        delta_bytes: Memory still to cover in bytes, positive.

    Source: spec commitments, 6.2.
    """
    for flavor in group.flavors:
        if 0 < flavor.memory_bytes <= delta_bytes:
            return flavor, flavor.memory_bytes
    return group.smallest, delta_bytes


def count_new_slots(group: FlavorGroupDef, delta_bytes: int) -> int:
    """Return how many slots cover an amount, without making them.

    Args:
        group: Group with at least one flavor.
        delta_bytes: Memory to cover in bytes; 0 or less needs none.

    Source: spec commitments, 6.2.
    """
    new_slots = 0
    while delta_bytes > 0:
        flavor, memory_bytes = select_flavor(group, delta_bytes)
        repeats = delta_bytes // memory_bytes if memory_bytes == flavor.memory_bytes else 1
        new_slots += repeats
        delta_bytes -= repeats * memory_bytes
    return new_slots


def plan_slots(
    existing: Sequence[SlotView],
    desired: CommitmentState,
    group: FlavorGroupDef | None,
    *,
    now: datetime,
    max_slots: int = 0,
    payg: Sequence[PaygVM] = (),
) -> PlanOutcome:
    """Plan the slots of one commitment so that their memory adds up to what it claims now.

    Slots of another project, group or zone are replaced, and so are those without a host that have
    no vCPU to ask one for. A surplus is taken from slots without VMs,
    unplaced ones first, with as little to create again as possible; slots with VMs shrink in place
    only when no slot without VMs is left. The result does not depend on the order of ``existing``,
    and planning again after applying gives an empty plan.

    Args:
        existing: All slots of the commitment.
        desired: The commitment; cores commitments want no slots.
        group: Its flavor group, None if unknown. Not needed when nothing is claimed.
        now: The present, decides what is claimed.
        max_slots: Most slots to create; 0 means no limit. Those made for running VMs do not count.
        payg: Running VMs of the project that may be covered instead of holding fresh room.

    Returns:
        The plan, or why there is none.

    Source: spec commitments, 6.3, 6.7, 7.2.
    """
    desired_bytes = desired.effective_memory_bytes(now)
    ordered = sorted(existing, key=lambda slot: (slot.slot_index, slot.slot_id))
    if desired_bytes > 0:
        if group is None:
            return FlavorGroupNotFound(group_name=desired.flavor_group_name)
        if not group.flavors:
            return FlavorGroupEmpty(group_name=group.name)
    usable = [slot for slot in ordered if _is_usable(slot, desired, group)]
    surplus_bytes = sum(slot.memory_bytes for slot in usable) - desired_bytes
    kept_bytes = _kept_after_shrinking(usable, surplus_bytes)
    missing_bytes = desired_bytes - sum(kept_bytes.values())
    creates: tuple[NewSlot, ...] = ()
    if missing_bytes > 0 and group is not None:
        adoptions = adopt_vms(payg, missing_bytes)
        missing_bytes -= sum(adoption.memory_bytes for adoption in adoptions)
        needed_slots = count_new_slots(group, missing_bytes)
        if 0 < max_slots < needed_slots:
            return SlotLimitExceeded(new_slots=needed_slots, limit=max_slots)
        next_index = max((slot.slot_index for slot in ordered), default=-1) + 1
        adopted = _slots_of_vms(adoptions, next_index, desired.slot_prefix)
        next_index += len(adopted)
        creates = adopted + new_slots(group, missing_bytes, next_index, desired.slot_prefix)
    usable_ids = {slot.slot_id for slot in usable}
    survivors = [slot for slot in usable if kept_bytes[slot.slot_id] > 0]
    updates = (_synced_metadata(slot, desired) for slot in survivors)
    return SlotPlan(
        repair_ids=tuple(slot.slot_id for slot in ordered if slot.slot_id not in usable_ids),
        delete_ids=tuple(slot.slot_id for slot in usable if kept_bytes[slot.slot_id] == 0),
        creates=creates,
        shrinks=tuple(
            _shrunk(slot, kept_bytes[slot.slot_id])
            for slot in survivors
            if kept_bytes[slot.slot_id] < slot.memory_bytes
        ),
        updates=tuple(update for update in updates if update is not None),
        total_slots=len(survivors) + len(creates),
    )


def _is_usable(slot: SlotView, desired: CommitmentState, group: FlavorGroupDef | None) -> bool:
    return (
        slot.project_id == desired.project_id
        and slot.flavor_group_name == desired.flavor_group_name
        and slot.zone == desired.zone
        and not (group is not None and _is_stranded(slot, group))
    )


def _is_stranded(slot: SlotView, group: FlavorGroupDef) -> bool:
    """Return whether a slot waits for a host and none can be asked for it.

    A part that was cut off a slot may have no vCPU of its own, which is enough where it is.
    """
    is_waiting = slot.target_host is None and not slot.has_allocations
    return is_waiting and slot.vcpus == 0 and all(flavor.vcpus > 0 for flavor in group.flavors)


def _kept_after_shrinking(slots: Sequence[SlotView], surplus_bytes: int) -> dict[int, int]:
    kept_bytes = {slot.slot_id: slot.memory_bytes for slot in slots}
    if surplus_bytes <= 0:
        return kept_bytes
    unplaced = [s for s in slots if not s.has_allocations and s.target_host is None]
    placed_empty = [s for s in slots if not s.has_allocations and s.target_host is not None]
    victims = _empty_victims(unplaced, placed_empty, surplus_bytes)
    for slot in victims:
        kept_bytes[slot.slot_id] = 0
    surplus_bytes -= sum(slot.memory_bytes for slot in victims)
    if surplus_bytes > 0:
        _take_from_slots_with_vms(slots, kept_bytes, surplus_bytes)
    return kept_bytes


def _empty_victims(
    unplaced: Sequence[SlotView], placed_empty: Sequence[SlotView], surplus_bytes: int
) -> list[SlotView]:
    empty = [*unplaced, *placed_empty]
    if sum(slot.memory_bytes for slot in empty) <= surplus_bytes:
        return empty
    exact = _covering_subset(unplaced, placed_empty, surplus_bytes)
    if sum(slot.memory_bytes for slot in exact) == surplus_bytes:
        return exact
    if sum(slot.memory_bytes for slot in unplaced) >= surplus_bytes:
        return _covering_subset(unplaced, (), surplus_bytes)
    return exact


def _covering_subset(
    preferred: Sequence[SlotView], others: Sequence[SlotView], surplus_bytes: int
) -> list[SlotView]:
    by_class: dict[tuple[bool, int], list[SlotView]] = {}
    for is_other, slots in ((False, preferred), (True, others)):
        for slot in sorted(slots, key=lambda s: (-s.memory_bytes, s.slot_index)):
            by_class.setdefault((is_other, slot.memory_bytes), []).append(slot)
    classes = [
        PieceClass(memory_bytes=memory_bytes, piece_count=len(slots))
        for (_, memory_bytes), slots in by_class.items()
    ]
    largest_bytes = max(pieces.memory_bytes for pieces in classes)
    sums = ReachableSums(classes, surplus_bytes + largest_bytes - 1)
    covered_bytes = sums.smallest_at_least(surplus_bytes)
    if covered_bytes is None:
        return _first_that_cover([*preferred, *others], surplus_bytes)
    counts = sums.piece_counts(covered_bytes)
    return [
        slot
        for slots, count in zip(by_class.values(), counts, strict=True)
        for slot in slots[:count]
    ]


def _first_that_cover(slots: Sequence[SlotView], surplus_bytes: int) -> list[SlotView]:
    victims: list[SlotView] = []
    for slot in slots:
        if surplus_bytes <= 0:
            break
        victims.append(slot)
        surplus_bytes -= slot.memory_bytes
    return victims


def _take_from_slots_with_vms(
    slots: Sequence[SlotView], kept_bytes: dict[int, int], surplus_bytes: int
) -> None:
    """Take a surplus from slots with VMs, last slot first: what VMs leave free, then the rest."""
    with_vms = [slot for slot in reversed(slots) if slot.has_allocations]
    for slot in with_vms:
        allocated_bytes = slot.allocated_memory_bytes or slot.memory_bytes
        taken_bytes = min(surplus_bytes, max(0, kept_bytes[slot.slot_id] - allocated_bytes))
        kept_bytes[slot.slot_id] -= taken_bytes
        surplus_bytes -= taken_bytes
    for slot in with_vms:
        taken_bytes = min(surplus_bytes, kept_bytes[slot.slot_id])
        kept_bytes[slot.slot_id] -= taken_bytes
        surplus_bytes -= taken_bytes


def _shrunk(slot: SlotView, memory_bytes: int) -> SlotShrink:
    vcpus = -(-slot.vcpus * memory_bytes // slot.memory_bytes)
    return SlotShrink(slot_id=slot.slot_id, memory_bytes=memory_bytes, vcpus=vcpus)


def _slots_of_vms(
    adoptions: Sequence[Adoption], next_index: int, prefix: str
) -> tuple[NewSlot, ...]:
    return tuple(
        NewSlot(
            slot_index=slot_index,
            name=slot_name(prefix, slot_index),
            resource_name=adoption.vm.flavor_name,
            memory_bytes=adoption.memory_bytes,
            vcpus=adoption.vm.flavor_vcpus,
            vm=adoption.vm,
        )
        for slot_index, adoption in enumerate(adoptions, start=next_index)
    )


def new_slots(
    group: FlavorGroupDef, missing_bytes: int, next_index: int, prefix: str
) -> tuple[NewSlot, ...]:
    """Return the slots that cover an amount, none of them for a running VM.

    Args:
        group: Group with at least one flavor.
        missing_bytes: Memory to cover in bytes.
        next_index: Number of the first one in the commitment.
        prefix: What their names begin with.

    Source: spec commitments, 6.2, 6.3 (phase 5).
    """
    creates: list[NewSlot] = []
    while missing_bytes > 0:
        flavor, memory_bytes = select_flavor(group, missing_bytes)
        slot_index = next_index + len(creates)
        creates.append(
            NewSlot(
                slot_index=slot_index,
                name=slot_name(prefix, slot_index),
                resource_name=flavor.name,
                memory_bytes=memory_bytes,
                vcpus=flavor.vcpus,
            )
        )
        missing_bytes -= memory_bytes
    return tuple(creates)


def _synced_metadata(slot: SlotView, desired: CommitmentState) -> SlotUpdate | None:
    """Return the metadata to write, None if it is up to date (spec commitments, 6.5).

    Values that the commitment does not set stay as they are, except the end: none clears it.
    """
    update = SlotUpdate(
        slot_id=slot.slot_id,
        commitment_uuid=desired.commitment_uuid or slot.commitment_uuid,
        domain_id=desired.domain_id or slot.domain_id,
        start_time=desired.start_time or slot.start_time,
        end_time=desired.end_time,
        parent_generation=desired.parent_generation or slot.parent_generation,
    )
    current = SlotUpdate(
        slot_id=slot.slot_id,
        commitment_uuid=slot.commitment_uuid,
        domain_id=slot.domain_id,
        start_time=slot.start_time,
        end_time=slot.end_time,
        parent_generation=slot.parent_generation,
    )
    return None if update == current else update
