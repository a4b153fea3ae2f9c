"""Cutting stored slots in place, with the VMs in them (ADR 0017; spec liquid, 11.3).

Runs inside the transaction of an admission, which has locked the rooms and the slots. The pieces
block together what the slot blocked, so that no host room changes.
"""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from copy import copy

from django.db.models.base import ModelState

from capacity.ledger.apply import hold_slots, join_slots, leave_slots, write_slots
from capacity.ledger.rooms import refresh_blocks
from capacity.ledger.sharing import InsideVM, divide_vms
from capacity.ledger.vms import vms_held_in_flight
from capacity.models import AllocationState, Reservation, ReservationAllocation
from commitments.domain.succession import SlotDivision
from scheduling.resources import ZERO, ResourceVector


def divide_slots(divisions: Sequence[SlotDivision], owners: Mapping[str, int]) -> None:
    """Make slots of the pieces of stored ones; the first piece keeps the row.

    Args:
        divisions: What is cut.
        owners: Commitment uuid to primary key.
    """
    if not divisions:
        return
    slots = Reservation.objects.in_bulk([division.slot_id for division in divisions])
    inside: defaultdict[int, list[ReservationAllocation]] = defaultdict(list)
    rows = ReservationAllocation.objects.filter(reservation_id__in=slots).order_by("vm_uuid")
    for row in rows:
        inside[row.reservation_id].append(row)
    held = vms_held_in_flight(slots)
    pieces = {
        division.slot_id: _pieces(division, slots[division.slot_id], owners)
        for division in divisions
    }
    made = [row for rows in pieces.values() for row in rows if row.commitment_id is not None]
    write_slots(row for row in made if row.pk is not None)
    hold_slots([row for row in made if row.pk is None])
    parts = [
        part
        for division in divisions
        for part in _parts(division, pieces[division.slot_id], inside[division.slot_id], held=held)
    ]
    leave_slots(slot_ids=slots)
    join_slots(parts)
    refresh_blocks(row.pk for row in made)


def _pieces(
    division: SlotDivision, slot: Reservation, owners: Mapping[str, int]
) -> list[Reservation]:
    """Return the rows of the pieces; those that nobody takes have no commitment."""
    rows = []
    for piece in division.pieces:
        row = slot if piece.piece_id == slot.pk else _another(slot)
        row.memory_bytes, row.vcpus = piece.slot.memory_bytes, piece.slot.vcpus
        row.blocked_memory_bytes, row.blocked_vcpus = piece.block.memory_bytes, piece.block.vcpus
        row.commitment_id = owners.get(piece.commitment_uuid)
        row.slot_index = piece.slot_index
        row.is_divided = True
        rows.append(row)
    return rows


def _another(slot: Reservation) -> Reservation:
    """Return a slot like another one that is not stored yet."""
    row = copy(slot)
    row._state = ModelState()  # noqa: SLF001 - Django's way to copy a row
    row.pk, row.uuid = None, uuid.uuid4()
    return row


def _parts(
    division: SlotDivision,
    slots: Sequence[Reservation],
    rows: Sequence[ReservationAllocation],
    *,
    held: Collection[tuple[int, str]],
) -> list[ReservationAllocation]:
    """Return the VMs of the pieces; what is in pieces that nobody takes is in no slot any more."""
    inside = [
        InsideVM(
            resources=row.size,
            is_confirmed=row.state == AllocationState.CONFIRMED,
            is_held=(division.slot_id, row.vm_uuid) in held,
        )
        for row in rows
    ]
    divided = divide_vms(
        inside,
        [piece.slot for piece in division.pieces],
        is_moving=slots[0].target_host_id != slots[0].confirmed_host_id,
    )
    return [
        _part(row, slot, part)
        for row, parts in zip(rows, divided, strict=True)
        for slot, part in zip(slots, parts, strict=True)
        if slot.commitment_id is not None and part != ZERO
    ]


def _part(
    row: ReservationAllocation, slot: Reservation, part: ResourceVector
) -> ReservationAllocation:
    return ReservationAllocation(
        reservation=slot,
        vm_uuid=row.vm_uuid,
        state=row.state,
        memory_bytes=part.memory_bytes,
        vcpus=part.vcpus,
        since=row.since,
        confirmed_host_id=row.confirmed_host_id,
        confirmed_at=row.confirmed_at,
        missing_since=row.missing_since,
    )
