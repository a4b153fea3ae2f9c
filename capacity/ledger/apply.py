"""Writing what becomes of slots and of the VMs in them, many rows a statement.

Locks: rooms of all hosts in question by primary key, then slots, then the VMs in them. The caller
has locked the slots that it hands in (:func:`capacity.ledger.rooms.lock_reservations`) and holds
the zone's lock.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, TypeVar

from django.db.models import F, Q

from capacity.agents.nudges import slots_changed
from capacity.ledger.leaving import Left, hold_left_rooms
from capacity.ledger.plan import Move
from capacity.ledger.readiness import let_agents_make
from capacity.ledger.rooms import blocks_by_host, lock_rooms, move_blocks, shift_blocks
from capacity.models import ReadyReason, Reservation, ReservationAllocation, ReservationKind
from scheduling.resources import ZERO, ResourceVector

_Row = TypeVar("_Row", Reservation, ReservationAllocation)

BATCH_SIZE: Final = 1000
SLOT_FIELDS: Final = (
    "commitment",
    "slot_index",
    "is_divided",
    "memory_bytes",
    "vcpus",
    "target_host",
    "confirmed_host",
    "blocked_memory_bytes",
    "blocked_vcpus",
    "is_ready",
    "ready_reason",
    "ready_message",
    "ready_changed_at",
    "observed_parent_generation",
    "decision",
    "generation",
)
BLOCKING_FIELDS: Final = (
    "kind",
    "target_host",
    "confirmed_host",
    "blocked_memory_bytes",
    "blocked_vcpus",
)
VM_FIELDS: Final = (
    "state",
    "memory_bytes",
    "vcpus",
    "confirmed_host",
    "confirmed_at",
    "missing_since",
)


def move_slots(
    slots: Mapping[int, Reservation], moves: Iterable[Move], *, now: datetime
) -> frozenset[int]:
    """Move slots, with their room; :func:`write_slots` writes them.

    What a slot takes more of a host than before needs room there. Where a host has none for all
    that comes to it, none of that moves, and what leaves other hosts for it stays too.

    Args:
        slots: The slots by key, locked.
        moves: What becomes of them, at most one each.

    Returns:
        The hosts that had no room.
    """
    wanted = list(moves)
    growth = _sums(_growth(slots[one.slot_id], one) for one in wanted)
    given_back = _sums(_given_back(slots[one.slot_id], one) for one in wanted)
    if growth and given_back:
        lock_rooms({*growth, *given_back})
    full = frozenset(move_blocks(ReservationKind.COMMITTED, growth))
    made = [one for one in wanted if one.host_id not in full]
    if full:
        given_back = _sums(_given_back(slots[one.slot_id], one) for one in made)
    shift_blocks(ReservationKind.COMMITTED, given_back)
    hold_left_rooms(left for one in made for left in _left(slots[one.slot_id], one))
    for one in made:
        put_slot(slots[one.slot_id], one, now=now)
    return full


def _growth(slot: Reservation, move: Move) -> dict[int, ResourceVector]:
    """Return what a slot takes more of the host that it goes to."""
    if move.host_id is None:
        return {}
    before = blocks_by_host([slot]).get(move.host_id, ZERO)
    return {move.host_id: (move.block - before).clamped()}


def _given_back(slot: Reservation, move: Move) -> dict[int, ResourceVector]:
    """Return what a slot takes less of its hosts, as negative amounts."""
    return {
        host_id: ZERO - (before - (move.block if host_id == move.host_id else ZERO)).clamped()
        for host_id, before in blocks_by_host([slot]).items()
    }


def _left(slot: Reservation, move: Move) -> list[Left]:
    """Return what a slot blocked on hosts that it leaves."""
    return [
        Left(slot.pk, host_id, block)
        for host_id, block in blocks_by_host([slot]).items()
        if host_id != move.host_id
    ]


def _sums(parts: Iterable[Mapping[int, ResourceVector]]) -> dict[int, ResourceVector]:
    sums: dict[int, ResourceVector] = {}
    for part in parts:
        for host_id, amount in part.items():
            if amount != ZERO:
                sums[host_id] = sums.get(host_id, ZERO) + amount
    return sums


def put_slot(slot: Reservation, move: Move, *, now: datetime) -> None:
    """Set a slot's columns to where it goes; its room is the caller's to take."""
    slot.target_host_id = slot.confirmed_host_id = move.host_id
    slot.blocked_memory_bytes, slot.blocked_vcpus = move.block.memory_bytes, move.block.vcpus
    standing, has_host = move.standing, move.host_id is not None
    if standing is None:
        return
    if slot.is_ready != has_host or slot.ready_changed_at is None:
        slot.ready_changed_at = now
    slot.is_ready = has_host
    slot.ready_reason, slot.ready_message = standing.reason, standing.message
    slot.decision = standing.decision
    if standing.is_observed:
        slot.observed_parent_generation = slot.parent_generation


def write_slots(slots: Iterable[Reservation]) -> None:
    """Write stored slots as they are now; what an agent has to make is not ready before that."""
    written = _upsert(Reservation, slots, SLOT_FIELDS)
    if written:
        let_agents_make(written)
        slots_changed()


def hold_slots(slots: Sequence[Reservation], vms: Iterable[ReservationAllocation] = ()) -> None:
    """Write new slots whose room was taken, and the VMs in them.

    What an agent has to make is not ready before that.
    """
    Reservation.objects.bulk_create(slots, batch_size=BATCH_SIZE)
    join_slots(vms)
    if slots:
        let_agents_make(slots)
        slots_changed()


def release_slots(slot_ids: Collection[int]) -> None:
    """Delete slots with the VMs in them; the caller has given their room back.

    It stays held where the agent of their host has it still.
    """
    slots = list(Reservation.objects.filter(pk__in=slot_ids).only(*BLOCKING_FIELDS))
    hold_left_rooms(
        Left(slot.pk, host_id, block)
        for slot in slots
        if slot.kind == ReservationKind.COMMITTED
        for host_id, block in blocks_by_host([slot]).items()
    )
    Reservation.objects.filter(pk__in=slot_ids).delete()
    slots_changed()


def relabel_slots(commitment_id: int, labels: Mapping[str, Any]) -> None:  # Any: column values
    """Write what the slots of a commitment are held for, where it differs.

    Args:
        labels: Column to value.
    """
    differs = Q()
    for name, entry in labels.items():
        differs |= ~Q(**{name: entry}) if entry is not None else Q(**{f"{name}__isnull": False})
    Reservation.objects.filter(differs, commitment_id=commitment_id).update(**labels)


def note_unknown_flavor(commitment_id: int, message: str, *, now: datetime) -> None:
    """Say on a commitment's slots without a host why none is looked for (commitments, 9.2)."""
    waiting = Reservation.objects.filter(commitment_id=commitment_id, target_host__isnull=True)
    waiting.exclude(ready_reason=ReadyReason.FLAVOR_NOT_FOUND).update(
        is_ready=False,
        ready_reason=ReadyReason.FLAVOR_NOT_FOUND,
        ready_message=message,
        ready_changed_at=now,
        observed_parent_generation=F("parent_generation"),
    )


def write_vms(vms: Iterable[ReservationAllocation]) -> None:
    """Write stored VMs of slots as they are now; what slots block is counted anew after it."""
    _upsert(ReservationAllocation, vms, VM_FIELDS)


def join_slots(vms: Iterable[ReservationAllocation]) -> None:
    """Write VMs that are in slots from now on; what slots block is counted anew after it."""
    ReservationAllocation.objects.bulk_create(vms, batch_size=BATCH_SIZE)


def leave_slots(
    *, vm_ids: Collection[int] = (), slot_ids: Collection[int] = (), vm_uuids: Collection[str] = ()
) -> int:
    """Take VMs out of slots; what the slots block is counted anew after it.

    Args:
        vm_ids: Rows that go.
        slot_ids: Slots whose VMs all go, or those of ``vm_uuids``.
        vm_uuids: Which VMs of the slots go; all when left out.

    Returns:
        How many rows went.
    """
    gone = Q(pk__in=vm_ids)
    if slot_ids:
        listed = Q(reservation_id__in=slot_ids)
        gone |= listed & Q(vm_uuid__in=vm_uuids) if vm_uuids else listed
    return ReservationAllocation.objects.filter(gone).delete()[0]


def _upsert(model: type[_Row], rows: Iterable[_Row], fields: Sequence[str]) -> list[_Row]:
    """Write columns of stored rows in few statements, each row once; return the rows by key.

    The rows are locked.
    """
    unique = {row.pk: row for row in rows}
    ordered = [unique[pk] for pk in sorted(unique)]
    if ordered:
        model.objects.bulk_create(
            ordered,
            batch_size=BATCH_SIZE,
            update_conflicts=True,
            unique_fields=["id"],
            update_fields=fields,
        )
    return ordered
