"""Slots leave an over-subscribed host: moved if possible, else evicted (commitments, 11)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db.models import Exists, OuterRef, Q

from capacity.domain.eviction import EvictableSlot, EvictionPlan, excess_resources
from capacity.domain.placing import place_slots
from capacity.hooks import ReleasedReservation, reservations_released
from capacity.ledger.rooms import move_blocks
from capacity.models import (
    HostCapacity,
    ReadyReason,
    Reservation,
    ReservationAllocation,
    ReservationKind,
)
from capacity.selectors.host_table import current_host_table
from capacity.selectors.in_flight import blocked_twice_on
from capacity.selectors.slot_requests import SlotBook, held_slot
from core.text import count_text, memory_text
from hosts.models import Host
from journal.actors import Actor
from journal.errors import HeadroomError
from journal.services import Change, record_changes
from scheduling.decision import Decision
from scheduling.resources import ZERO, ResourceVector

TOPIC = "reservations"
WRITTEN_FIELDS = (
    "target_host",
    "confirmed_host",
    "blocked_memory_bytes",
    "blocked_vcpus",
    "is_ready",
    "ready_reason",
    "ready_message",
    "ready_changed_at",
    "generation",
)


class EvictionSpoiled(HeadroomError):  # noqa: N818 - the field's word: plan again
    """The host or the room elsewhere changed between plan and apply; the caller plans again."""

    code = "eviction_spoiled"


@dataclass(frozen=True, slots=True, kw_only=True)
class Departures:
    """What becomes of the slots that leave a host.

    Attributes:
        host: The over-subscribed host.
        excess: What it lacked when this was planned.
        plan: Which slots leave.
        slots: Them as they were read, in order of key.
        moves: Slot key to the placement elsewhere, for those that found one.
    """

    host: Host
    excess: ResourceVector
    plan: EvictionPlan
    slots: tuple[EvictableSlot, ...]
    moves: Mapping[int, Decision]

    @property
    def evicted_ids(self) -> tuple[int, ...]:
        """Keys of the slots that lose their host without a new one."""
        return tuple(slot_id for slot_id in self.plan.slot_ids if slot_id not in self.moves)


def excess_of(room: HostCapacity) -> ResourceVector:
    """Return what a host lacks for its VMs and reservations, zero where it has enough.

    What a slot and a VM in flight into it block together counts once (spec scheduling, 16.3).
    """
    shared = ZERO
    if room.in_flight_memory_bytes or room.in_flight_vcpus:
        shared = blocked_twice_on([room.host_id]).get(room.host_id, ZERO)
    return excess_resources(
        shared
        + ResourceVector(
            memory_bytes=room.effective_memory_bytes
            - room.allocated_memory_bytes
            - room.committed_memory_bytes
            - room.failover_memory_bytes
            - room.in_flight_memory_bytes,
            vcpus=room.effective_vcpus
            - room.allocated_vcpus
            - room.committed_vcpus
            - room.failover_vcpus
            - room.in_flight_vcpus,
        )
    )


def evictable_slots(host: Host) -> tuple[EvictableSlot, ...]:
    """Return the committed slots on a host that have a target host, by key."""
    listed = ReservationAllocation.objects.filter(reservation=OuterRef("pk"))
    rows = (
        Reservation.objects.filter(
            Q(target_host=host) | Q(confirmed_host=host),
            kind=ReservationKind.COMMITTED,
            target_host__isnull=False,
        )
        .annotate(has_vms=Exists(listed))
        .order_by("pk")
    )
    return tuple(
        EvictableSlot(
            slot_id=row.pk,
            slot=_size(row),
            blocked=_block(row),
            has_vms=bool(row.has_vms),
        )
        for row in rows
    )


def place_elsewhere(host: Host, slot_ids: Sequence[int]) -> dict[int, Decision]:
    """Choose other hosts for slots, the largest first, each seeing those before.

    Returns:
        Slot key to its placement; slots that fit nowhere, or whose flavor group is not known, are
        left out.

    Raises:
        NotReady: flavor groups have not been extracted yet.
    """
    rows = (
        Reservation.objects.filter(pk__in=slot_ids)
        .select_related("commitment")
        .order_by("-memory_bytes", "-vcpus", "pk")
    )
    slots = [held_slot(row) for row in rows]
    book = SlotBook(slots)
    asks = [book.ask_for(slot, ignore_hosts={host.name}) for slot in slots]
    decisions = place_slots(current_host_table(), asks)
    return {
        slot.slot_id: decision
        for slot, decision in zip(slots, decisions, strict=True)
        if decision is not None and decision.host_id is not None
    }


def apply_departures(
    departures: Departures, *, now: datetime, actor: Actor, request_id: str
) -> None:
    """Take slots off their host. Locks host rooms by key, then commitments; call under zone lock.

    Raises:
        EvictionSpoiled: somebody changed the host or took the room elsewhere; roll back.
    """
    rows = list(
        Reservation.objects.filter(pk__in=departures.plan.slot_ids)
        .select_related("target_host", "commitment")
        .order_by("pk")
    )
    refused = move_blocks(ReservationKind.COMMITTED, _deltas(rows, departures.moves))
    if refused:
        message = f"{len(refused)} host(s) filled up while slots were moved there"
        raise EvictionSpoiled(message, hosts=refused)
    _check_unchanged(departures)
    reason = _reason(departures)
    evicted = [row for row in rows if row.pk not in departures.moves]
    reservations_released(
        [
            ReleasedReservation(
                reservation_id=row.pk,
                kind=row.kind,
                commitment_id=row.commitment_id,
                reason=reason,
            )
            for row in evicted
        ],
        now=now,
    )
    ReservationAllocation.objects.filter(reservation__in=rows).delete()
    changes = [_leave(row, departures.moves.get(row.pk), reason, now) for row in rows]
    Reservation.objects.bulk_update(rows, WRITTEN_FIELDS, batch_size=1000)
    record_changes(changes, actor=actor, request_id=request_id)


def _deltas(
    rows: Sequence[Reservation], moves: Mapping[int, Decision]
) -> dict[int, ResourceVector]:
    deltas: dict[int, ResourceVector] = {}
    for row in rows:
        for host_id in {row.target_host_id, row.confirmed_host_id}:
            if host_id is not None:
                deltas[host_id] = deltas.get(host_id, ZERO) - _block(row)
        new_host_id = moves[row.pk].host_id if row.pk in moves else None
        if new_host_id is not None:
            deltas[new_host_id] = deltas.get(new_host_id, ZERO) + _size(row)
    return deltas


def _check_unchanged(departures: Departures) -> None:
    """Check under the locks that the slots and what the host lacks are as they were planned on.

    Raises:
        EvictionSpoiled: they are not.
    """
    leaving = set(departures.plan.slot_ids)
    slots = tuple(slot for slot in evictable_slots(departures.host) if slot.slot_id in leaving)
    room = HostCapacity.objects.get(host=departures.host)
    remaining = excess_of(room)
    if slots != departures.slots or remaining != departures.plan.remaining:
        message = f"{departures.host.name} changed while slots were chosen to leave it"
        raise EvictionSpoiled(message, host=departures.host.name)


def _leave(row: Reservation, placement: Decision | None, reason: str, now: datetime) -> Change:
    """Set a slot's columns to where it goes; the caller saves."""
    before = {"host": row.target_host.name if row.target_host is not None else None}
    host_id = placement.host_id if placement is not None else None
    block = _size(row) if host_id is not None else ZERO
    row.target_host_id = row.confirmed_host_id = host_id
    row.blocked_memory_bytes, row.blocked_vcpus = block.memory_bytes, block.vcpus
    row.generation += 1
    if row.is_ready != (host_id is not None) or row.ready_changed_at is None:
        row.ready_changed_at = now
    row.is_ready = host_id is not None
    row.ready_reason = ReadyReason.ACTIVE if row.is_ready else ReadyReason.REVOKED
    row.ready_message = reason
    after: dict[str, Any] = {
        "host": placement.host_name if placement is not None else None,
        "memory_bytes": row.memory_bytes,
        "vcpus": row.vcpus,
        "commitment": row.commitment.commitment_uuid if row.commitment is not None else None,
    }
    return Change(
        action="slot_moved" if row.is_ready else "slot_evicted",
        object_type="Reservation",
        object_id=str(row.uuid),
        before=before,
        after=after,
        reason=reason,
        topic=TOPIC,
    )


def _reason(departures: Departures) -> str:
    excess = departures.excess
    parts = []
    if excess.memory_bytes:
        parts.append(memory_text(excess.memory_bytes))
    if excess.vcpus:
        parts.append(count_text(excess.vcpus, "vCPUs"))
    return (
        f"host {departures.host.name} was over-subscribed by {' and '.join(parts)}: "
        f"{len(departures.moves)} of {len(departures.plan.slot_ids)} slots were moved, "
        f"{len(departures.evicted_ids)} lost their host"
    )


def _size(row: Reservation) -> ResourceVector:
    return ResourceVector(memory_bytes=row.memory_bytes, vcpus=row.vcpus)


def _block(row: Reservation) -> ResourceVector:
    return ResourceVector(memory_bytes=row.blocked_memory_bytes, vcpus=row.blocked_vcpus)
