"""VMs in slots: expected, confirmed, forgotten (spec commitments, 10.1; scheduling, 12.1, 16.3).

Every change of a VM in a slot recomputes in the same transaction what the slot blocks and what its
hosts have left. Locks: rooms of the slot's hosts by primary key, then the slot. All functions may
run inside the transaction of their caller.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from django.db import transaction

from capacity.ledger.apply import join_slots, leave_slots
from capacity.ledger.rooms import lock_reservations, refresh_blocks
from capacity.ledger.sharing import share_vm
from capacity.models import AllocationState, Reservation, ReservationAllocation, ReservationKind
from journal.statements import fetch_rows
from scheduling.resources import ZERO, ResourceVector

VMS_IN_SLOTS = """
  FROM capacity_reservation AS held
 CROSS JOIN LATERAL capacity_vms_in_slot(
       held.id, held.target_host_id, held.confirmed_host_id) AS vm
 WHERE held.id = ANY(%s)
"""

SLOT_VM_SUMS = f"""
SELECT held.id,
       coalesce(sum(vm.memory_bytes) FILTER (WHERE vm.state = 'confirmed'), 0)::bigint,
       coalesce(sum(vm.vcpus) FILTER (WHERE vm.state = 'confirmed'), 0)::bigint,
       coalesce(sum(vm.memory_bytes) FILTER (WHERE vm.state = 'expected'), 0)::bigint,
       coalesce(sum(vm.vcpus) FILTER (WHERE vm.state = 'expected'), 0)::bigint,
       coalesce(sum(vm.memory_bytes) FILTER (WHERE vm.is_due), 0)::bigint,
       coalesce(sum(vm.vcpus) FILTER (WHERE vm.is_due), 0)::bigint
{VMS_IN_SLOTS} GROUP BY held.id
"""

SLOTS_EXPECTING = """
SELECT DISTINCT held.id
  FROM capacity_reservationallocation AS vm
  JOIN capacity_reservation AS held ON held.id = vm.reservation_id
 WHERE vm.vm_uuid = ANY(%s) AND vm.state = 'expected' AND held.kind = 'committed'
"""

HELD_IN_FLIGHT = f"""
SELECT held.id, vm.vm_uuid {VMS_IN_SLOTS} AND vm.state = 'expected' AND NOT vm.is_due
"""


class Booking(StrEnum):
    """What became of the wish to book a VM into a slot."""

    BOOKED = "booked"
    ALREADY = "already_listed"
    NO_SLOT = "no_slot"
    FULL = "slot_full"
    NO_ROOM = "host_full"


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotVMSums:
    """What the VMs of a slot take.

    Attributes:
        confirmed: VMs that were seen there.
        expected: VMs that were placed there and not seen yet.
        expected_unheld: Those of them that no in-flight row holds room for.
    """

    confirmed: ResourceVector = ZERO
    expected: ResourceVector = ZERO
    expected_unheld: ResourceVector = ZERO


NO_VMS = SlotVMSums()


def slot_vm_sums(reservation_ids: Collection[int]) -> dict[int, SlotVMSums]:
    """Return what the VMs of slots take; slots without VMs are left out."""
    if not reservation_ids:
        return {}
    return {
        row[0]: SlotVMSums(
            confirmed=ResourceVector(memory_bytes=row[1], vcpus=row[2]),
            expected=ResourceVector(memory_bytes=row[3], vcpus=row[4]),
            expected_unheld=ResourceVector(memory_bytes=row[5], vcpus=row[6]),
        )
        for row in fetch_rows(SLOT_VM_SUMS, [list(reservation_ids)])
    }


def vms_held_in_flight(reservation_ids: Collection[int]) -> set[tuple[int, str]]:
    """Return slots with the VMs expected in them whose room an in-flight row blocks."""
    return {(row[0], row[1]) for row in fetch_rows(HELD_IN_FLIGHT, [list(reservation_ids)])}


def expect_in_slots(
    reservation_ids: Sequence[int],
    vm_uuid: str,
    resources: ResourceVector,
    *,
    now: datetime,
    project_id: str = "",
) -> Booking:
    """Book a VM into committed slots of one host that cover it together, each by a part.

    It is expected there from now on. The VM may be larger than what the slots have left, as long
    as memory is left at all and the host has room for the rest; an in-flight row of the VM on that
    host holds it already.

    Args:
        reservation_ids: The slots, which are filled in this order.
        resources: What the VM takes.
        now: When it was placed there.
        project_id: Whose slots they must be still; empty does not ask.

    Returns:
        ``BOOKED`` if rows were written, else why not; then nothing changed.

    Source: spec scheduling, 12.1 and 12.2 (overfill is allowed, CPU is not considered).
    """
    with transaction.atomic():
        locked = lock_reservations(reservation_ids)
        slots = _of_one_host(
            locked[slot_id]
            for slot_id in reservation_ids
            if slot_id in locked and project_id in {"", locked[slot_id].project_id}
        )
        if not slots:
            return Booking.NO_SLOT
        vms = ReservationAllocation.objects.filter(reservation__in=slots)
        if vms.filter(vm_uuid=vm_uuid).exists():
            return Booking.ALREADY
        inside = slot_vm_sums([slot.pk for slot in slots])
        rooms = {slot: _room(slot, inside.get(slot.pk, NO_VMS)) for slot in slots}
        usable = [slot for slot in slots if rooms[slot].memory_bytes > 0]
        if not usable:
            return Booking.FULL
        parts = share_vm(resources, [rooms[slot] for slot in usable])
        join_slots(
            ReservationAllocation(
                reservation=slot,
                vm_uuid=vm_uuid,
                state=AllocationState.EXPECTED,
                memory_bytes=part.memory_bytes,
                vcpus=part.vcpus,
                since=now,
            )
            for slot, part in zip(usable, parts, strict=True)
            if part != ZERO
        )
        if refresh_blocks([slot.pk for slot in usable], must_fit=True):
            transaction.set_rollback(True)
            return Booking.NO_ROOM
    return Booking.BOOKED


def _of_one_host(slots: Iterable[Reservation]) -> list[Reservation]:
    """Return the committed slots on the host of the first one; one may have moved meanwhile."""
    placed = [
        slot
        for slot in slots
        if slot.kind == ReservationKind.COMMITTED and slot.target_host_id is not None
    ]
    return [slot for slot in placed if slot.target_host_id == placed[0].target_host_id]


def _room(slot: Reservation, inside: SlotVMSums) -> ResourceVector:
    taken = inside.confirmed + inside.expected
    return slot.size - taken


def forget_in_slots(
    vm_uuids: Collection[str], *, reservation_ids: Collection[int] | None = None
) -> int:
    """Take VMs out of committed slots, which get their room back even on a full host.

    Args:
        vm_uuids: The VMs.
        reservation_ids: Slots they leave; all when left out.

    Returns:
        How many rows went.
    """
    with transaction.atomic():
        slots = lock_reservations(_slots_listing(vm_uuids, reservation_ids))
        gone = leave_slots(slot_ids=slots, vm_uuids=vm_uuids)
        refresh_blocks(slots)
    return gone


def refresh_slots_expecting(vm_uuids: Iterable[str]) -> None:
    """Recompute what the slots block in which VMs are expected whose in-flight rows changed."""
    slots = [slot_id for (slot_id,) in fetch_rows(SLOTS_EXPECTING, [sorted(set(vm_uuids))])]
    refresh_blocks(slots)


def _slots_listing(
    vm_uuids: Collection[str], reservation_ids: Collection[int] | None = None
) -> set[int]:
    slots = Reservation.objects.filter(
        kind=ReservationKind.COMMITTED, allocations__vm_uuid__in=vm_uuids
    )
    if reservation_ids is not None:
        slots = slots.filter(pk__in=reservation_ids)
    return set(slots.values_list("pk", flat=True))
