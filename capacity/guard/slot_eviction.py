"""Slots leave an over-subscribed host: moved if possible, else evicted (commitments, 11)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from django.db.models import Exists, OuterRef, Q

from capacity.guard.amounts import NOTHING, Amounts
from capacity.guard.eviction import EvictableSlot, EvictionPlan, excess_resources
from capacity.hooks import ReleasedReservation, hooks
from capacity.ledger.apply import leave_slots, move_slots, write_slots
from capacity.ledger.claims import blocked_twice_on
from capacity.ledger.leaving import leaving_others, leaving_room
from capacity.ledger.plan import Move, Standing
from capacity.ledger.rooms import lock_reservations
from capacity.models import (
    HostCapacity,
    ReadyReason,
    Reservation,
    ReservationAllocation,
    ReservationKind,
)
from capacity.nova.slot_requests import places_elsewhere
from core.text import count_text, memory_text, plural
from hosts.agents.resource_models import HostResource, ResourceSource
from hosts.models import Host
from journal.actors import Actor
from journal.errors import HeadroomError
from journal.services import Change, record_changes
from scheduling.decision import Decision
from scheduling.needs import OTHER_RESOURCES, Needs
from scheduling.resources import ZERO, ResourceVector

TOPIC = "reservations"


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
    excess: Amounts
    plan: EvictionPlan
    slots: tuple[EvictableSlot, ...]
    moves: Mapping[int, Decision]

    @property
    def evicted_ids(self) -> tuple[int, ...]:
        """Keys of the slots that lose their host without a new one."""
        return tuple(slot_id for slot_id in self.plan.slot_ids if slot_id not in self.moves)


def excess_of(room: HostCapacity) -> Amounts:
    """Return what a host lacks for its VMs and reservations, nothing where it has enough.

    What a slot and a VM in flight into it block together counts once (spec scheduling, 16.3).
    Network, disk I/O and GPUs count as far as the host's agent knows them.
    """
    shared = ZERO
    if room.in_flight_memory_bytes or room.in_flight_vcpus:
        shared = blocked_twice_on([room.host_id]).get(room.host_id, ZERO)
    left = shared + ResourceVector(
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
    free = Amounts.of(left, _others_left(room.host_id))
    lacking = excess_resources(free)
    if lacking == NOTHING:
        return lacking
    # What is being given back is promised to nobody.
    leaving = Amounts.of(leaving_room(room.host_id), leaving_others(room.host_id))
    return excess_resources(free + leaving)


def _others_left(host_id: int) -> Needs:
    """Return what is left of network, disk I/O and GPUs of a host; 0 of what is not known."""
    known = HostResource.objects.filter(host_id=host_id, is_stale=False).exclude(
        source=ResourceSource.UNKNOWN
    )
    left = {
        row.resource: row.effective_capacity - row.allocated - row.reserved
        for row in known.order_by("pk")
    }
    return Needs(*(left.get(resource, 0) for resource in OTHER_RESOURCES))


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
            slot=Amounts.of(row.size),
            blocked=Amounts.of(row.blocked, row.held),
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
    rows = list(
        Reservation.objects.filter(pk__in=slot_ids)
        .select_related("commitment")
        .order_by("-memory_bytes", "-vcpus", "pk")
    )
    return places_elsewhere(rows, [host.name] * len(rows))


def apply_departures(
    departures: Departures, *, now: datetime, actor: Actor, request_id: str
) -> None:
    """Take slots off their host. Locks host rooms by key, then commitments; call under zone lock.

    Raises:
        EvictionSpoiled: somebody changed the host or took the room elsewhere; roll back.
    """
    moves = departures.moves
    slot_ids = departures.plan.slot_ids
    targets = {decision.host_id for decision in moves.values() if decision.host_id is not None}
    slots = lock_reservations(slot_ids, hosts=targets)
    reason = _reason(departures)
    refused = move_slots(
        slots, (_move(slot, moves.get(pk), reason) for pk, slot in slots.items()), now=now
    )
    if refused:
        raise EvictionSpoiled(
            f"{len(refused)} host(s) filled up while slots were moved there", hosts=sorted(refused)
        )
    _check_unchanged(departures)
    hooks.reservations_released(
        [
            ReleasedReservation(
                reservation_id=pk,
                kind=slot.kind,
                commitment_id=slot.commitment_id,
                reason=reason,
            )
            for pk, slot in slots.items()
            if pk not in moves
        ],
        now,
    )
    leave_slots(slot_ids=slots)
    before = (
        Reservation.objects.filter(pk__in=slots)
        .order_by("pk")
        .values_list("target_host__name", "commitment__commitment_uuid")
    )
    changes = [
        _change(slot, host, commitment_uuid, moves.get(slot.pk))
        for slot, (host, commitment_uuid) in zip(slots.values(), before, strict=True)
    ]
    write_slots(slots.values())
    record_changes(changes, actor=actor, request_id=request_id)


def _check_unchanged(departures: Departures) -> None:
    """Check under the locks that the slots and what the host lacks are as they were planned on.

    Raises:
        EvictionSpoiled: they are not.
    """
    leaving = set(departures.plan.slot_ids)
    slots = tuple(slot for slot in evictable_slots(departures.host) if slot.slot_id in leaving)
    room = HostCapacity.objects.get(host=departures.host)
    found, planned = excess_of(room), departures.plan.remaining
    # The rest is given back when the slots are written, after this.
    is_same = (found.memory_bytes, found.vcpus) == (planned.memory_bytes, planned.vcpus)
    if slots != departures.slots or not is_same:
        raise EvictionSpoiled(
            f"{departures.host.name} changed while slots were chosen to leave it",
            host=departures.host.name,
        )


def _move(slot: Reservation, placement: Decision | None, reason: str) -> Move:
    host_id = placement.host_id if placement is not None else None
    slot.generation += 1
    return Move(
        slot_id=slot.pk,
        host_id=host_id,
        block=slot.size if host_id is not None else ZERO,
        standing=Standing(
            reason=ReadyReason.REVOKED if host_id is None else ReadyReason.ACTIVE,
            message=reason,
            decision=slot.decision,
        ),
    )


def _change(
    slot: Reservation, host: str | None, commitment_uuid: str | None, placement: Decision | None
) -> Change:
    return Change(
        action="slot_moved" if slot.is_ready else "slot_evicted",
        object_type="Reservation",
        object_id=str(slot.uuid),
        before={"host": host},
        after={
            "host": placement.host_name if placement is not None else None,
            "memory_bytes": slot.memory_bytes,
            "vcpus": slot.vcpus,
            "commitment": commitment_uuid,
        },
        reason=slot.ready_message,
        topic=TOPIC,
    )


def _reason(departures: Departures) -> str:
    excess = departures.excess
    parts = (
        (excess.memory_bytes, memory_text(excess.memory_bytes)),
        (excess.vcpus, count_text(excess.vcpus, "vCPUs")),
        (excess.network_bps, f"{count_text(excess.network_bps, 'B/s')} of network"),
        (excess.disk_io_bps, f"{count_text(excess.disk_io_bps, 'B/s')} of disk I/O"),
        (excess.gpus, plural(excess.gpus, "GPU")),
    )
    lacked = " and ".join(text for amount, text in parts if amount)
    return (
        f"host {departures.host.name} was over-subscribed by {lacked}: "
        f"{len(departures.moves)} of {len(departures.plan.slot_ids)} slots were moved, "
        f"{len(departures.evicted_ids)} lost their host"
    )
