"""Whether a placement met its project's slots (spec scheduling, 12; spec commitments, 17).

After a placement the class says whether a slot took the VM; after a refusal it says why the
commitment did not help. Pure: the facts come from one read at the time of the run.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from capacity.hooks import TrackedPlacement
from commitments.domain.statuses import ACTIVE_STATUSES, ResourceType
from scheduling.quota import CommitmentFact


class SlotClass(StrEnum):
    """Values of the label ``cr_slot`` (spec scheduling, 11)."""

    NO_CR = "no_cr"
    SLOT_USED = "slot_used"
    SLOT_MISSED = "slot_missed"
    CR_EXHAUSTED = "cr_exhausted"
    SLOT_EXHAUSTED = "slot_exhausted"
    SLOT_BLOCKED = "slot_blocked"
    ERROR = "error"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackedSlot:
    """A ready slot on its target host.

    Attributes:
        slot_id: Its key in the ledger.
        name: Stable name, for the order.
        host_name: Target host.
        project_id: Whose it is.
        memory_bytes: Its size.
        allocated_bytes: Memory of all VMs in it, expected or confirmed.
        vm_uuids: These VMs.
    """

    slot_id: int
    name: str
    host_name: str
    project_id: str
    group: str
    memory_bytes: int
    allocated_bytes: int = 0
    vm_uuids: frozenset[str] = frozenset()

    @property
    def remaining_bytes(self) -> int:
        """Memory that its VMs leave, not below 0."""
        return remaining_bytes(self.memory_bytes, self.allocated_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackingFacts:
    """What is known when a run is classified.

    Attributes:
        commitments: Any commitments; those of the VM's project, group and zone count.
        slots: Any ready slots.
        free_bytes: Host -> capacity (effective, else plain) minus allocation; blocks not
            subtracted.
    """

    commitments: Sequence[CommitmentFact] = ()
    slots: Sequence[TrackedSlot] = ()
    free_bytes: Mapping[str, int] = field(default_factory=dict)


def remaining_bytes(total_bytes: int, used_bytes: int) -> int:
    """Return what is left of a slot, not below 0."""
    return max(0, total_bytes - used_bytes)


def slots_of(vm: TrackedPlacement, slots: Iterable[TrackedSlot]) -> tuple[TrackedSlot, ...]:
    """Return the slots that belong to the VM's project and group."""
    return tuple(
        slot for slot in slots if (slot.project_id, slot.group) == (vm.project_id, vm.group)
    )


def pick_slot(slots: Iterable[TrackedSlot], vm_memory_bytes: int) -> TrackedSlot | None:
    """Return the slot that covers most of a VM, None if none has memory left.

    Ties go to the smallest remaining room, then to the smallest name. The VM may overfill the
    slot, the host's free memory covers the rest. CPU does not matter.

    Source: spec scheduling, 12.2; spec commitments, 17.1.
    """
    usable = [slot for slot in slots if slot.remaining_bytes > 0]
    return min(
        usable,
        key=lambda slot: (
            -min(slot.remaining_bytes, vm_memory_bytes),
            slot.remaining_bytes,
            slot.name,
        ),
        default=None,
    )


def has_usable_slot(vm: TrackedPlacement, host_name: str, facts: TrackingFacts) -> bool:
    """Return whether the VM's slots on a host could take it together, overfilled if need be.

    Source: spec scheduling, 12.3; spec commitments, 17.1.
    """
    on_host = [slot for slot in facts.slots if slot.host_name == host_name]
    free_bytes = max(0, facts.free_bytes.get(host_name, 0))
    unheld_bytes = free_bytes - sum(slot.memory_bytes for slot in on_host)
    own_bytes = sum(slot.remaining_bytes for slot in slots_of(vm, on_host))
    return own_bytes > 0 and unheld_bytes + own_bytes >= vm.resources.memory_bytes


def classify_placement(
    vm: TrackedPlacement, candidates: Collection[str], facts: TrackingFacts
) -> SlotClass:
    """Return the class of a run that found hosts.

    Args:
        candidates: Hosts of the answer.
        facts: What is known.

    Source: spec scheduling, 12.1; spec commitments, 17.2.
    """
    if not _has_room(_active(vm, facts.commitments)):
        return SlotClass.NO_CR
    wanted = frozenset(candidates)
    if any(slot.host_name in wanted and slot.remaining_bytes for slot in slots_of(vm, facts.slots)):
        return SlotClass.SLOT_USED
    return SlotClass.SLOT_MISSED


def classify_refusal(
    vm: TrackedPlacement, input_hosts: Collection[str] | None, facts: TrackingFacts
) -> SlotClass:
    """Return the class of a run that found no host.

    Args:
        input_hosts: Hosts after candidate gathering; None means all.
        facts: What is known.

    Source: spec scheduling, 12.3; spec commitments, 17.2.
    """
    active = _active(vm, facts.commitments)
    if not active:
        return SlotClass.NO_CR
    if not _has_room(active):
        return SlotClass.CR_EXHAUSTED
    with_slots = {slot.host_name for slot in slots_of(vm, facts.slots)}
    hosts = with_slots if input_hosts is None else with_slots.intersection(input_hosts)
    if any(has_usable_slot(vm, host, facts) for host in hosts):
        return SlotClass.SLOT_BLOCKED
    return SlotClass.SLOT_EXHAUSTED


def pick_slots(slots: Iterable[TrackedSlot], vm_memory_bytes: int) -> tuple[TrackedSlot, ...]:
    """Return the slots that cover a VM together, the best first; none if none has memory left.

    One is enough where it has as much left as the VM takes. Else the next best for what is still
    uncovered follows, as long as there is one; the VM overfills what it does not fit into.

    Source: decisions (one VM may be covered by several slots); spec scheduling, 12.2.
    """
    left = list(slots)
    picked: list[TrackedSlot] = []
    while vm_memory_bytes > 0 or not picked:
        best = pick_slot(left, vm_memory_bytes)
        if best is None:
            break
        picked.append(best)
        left.remove(best)
        vm_memory_bytes -= best.remaining_bytes
    return tuple(picked)


def slots_to_record(
    vm: TrackedPlacement, target_host: str, facts: TrackingFacts
) -> tuple[TrackedSlot, ...]:
    """Return the slots on the target host that the VM goes into, in the order to fill them.

    None if the VM is in one of them already, or none has memory left.

    Source: spec scheduling, 12.1 step 4; spec commitments, 17.3.
    """
    on_target = [slot for slot in slots_of(vm, facts.slots) if slot.host_name == target_host]
    if any(vm.vm_uuid in slot.vm_uuids for slot in on_target):
        return ()
    return pick_slots(on_target, vm.resources.memory_bytes)


def _active(
    vm: TrackedPlacement, commitments: Iterable[CommitmentFact]
) -> tuple[CommitmentFact, ...]:
    return tuple(
        one
        for one in commitments
        if one.state in ACTIVE_STATUSES
        and one.resource_type == ResourceType.MEMORY
        and (one.project_id, one.group) == (vm.project_id, vm.group)
        and (not vm.zone or one.zone == vm.zone)
    )


def _has_room(active: Collection[CommitmentFact]) -> bool:
    used_bytes = sum(one.used_bytes for one in active)
    return used_bytes < sum(one.amount_bytes for one in active)
