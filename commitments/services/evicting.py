"""An operator has the slots of a host in maintenance go elsewhere (spec hosts, C.3, D.6).

No VM moves: slots with VMs go with them, when the cloud has moved those. What is left is counted
until nothing is (:mod:`hosts.services.evictions`).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from django.db import transaction
from django.db.models import Count, Exists, OuterRef, QuerySet, Sum

from capacity.groups.reading import load_group_definitions
from capacity.locks import zone_lock
from capacity.models import Reservation, ReservationAllocation, ReservationKind
from commitments.metrics.slots import SLOTS_MOVED
from commitments.services.relocation import CHUNK_SLOTS, MOVED, relocate
from core.chunks import in_chunks
from hosts.models import Host, Instance, Maintenance
from hosts.services.evictions import open_eviction
from hosts.services.host_orders import UnknownHost
from journal.actors import Actor
from journal.errors import HeadroomError, InvalidInput
from journal.services import Change, record_changes

EVICTED: Final = "slot_evicted_from_host"


class HostInService(HeadroomError):  # noqa: N818 - a state of the host
    """The host still gets slots: those that leave would come back."""

    code = "host_in_service"
    status = 409


@dataclass(frozen=True, slots=True, kw_only=True)
class Evicted:
    """What became of a host's slots, and what is still on it."""

    moved: int
    without_place: int
    with_vms: int
    vms: int
    vms_memory_bytes: int


def evict_slots(
    host_name: str, *, now: datetime, actor: Actor, request_id: str, reason: str
) -> Evicted:
    """Move the empty slots of a host to others; those that fit nowhere stay.

    Locks: the zone, then rooms and slots, in chunks of a transaction each.

    Raises:
        InvalidInput: There is no reason.
        UnknownHost: There is no such host.
        HostInService: It is not in maintenance, or in that of high availability.
        NotReady: Flavor groups have not been extracted yet.
        Busy: A planner has the zone for longer than the lock timeout.
    """
    if not reason.strip():
        raise InvalidInput("a reason is needed", field="reason")
    host = Host.objects.filter(name=host_name).first()
    if host is None:
        raise UnknownHost(host_name)
    if host.maintenance in {Maintenance.NONE, Maintenance.HA}:
        raise HostInService(f"{host_name} is in service: set its maintenance first")
    load_group_definitions(include_retired=True)
    events: Counter[str] = Counter()
    for ids in in_chunks(sorted(_empty(host).values_list("pk", flat=True)), CHUNK_SLOTS):
        with transaction.atomic(durable=True):
            zone_lock([host.zone])
            slots = list(
                _empty(host)
                .filter(pk__in=ids)
                .select_related("target_host", "commitment")
                .order_by("-memory_bytes", "pk")
            )
            why = {slot.pk: f"is evicted: {reason}" for slot in slots}
            events += relocate(
                slots, why, now=now, actor=actor, request_id=request_id, unmade_action=EVICTED
            )
    SLOTS_MOVED.labels(result="moved").inc(events[MOVED])
    found = _left(host, events[MOVED])
    change = Change(
        action="host_evicted",
        object_type="host",
        object_id=host_name,
        after={
            "slots_moved": found.moved,
            "slots_left": found.without_place,
            "vms": found.vms,
        },
        reason=reason,
    )
    with transaction.atomic():
        open_eviction(host, reason=reason, actor=actor)
        record_changes([change], actor=actor, request_id=request_id)
    return found


def _empty(host: Host) -> QuerySet[Reservation]:
    return _slots(host).filter(~Exists(_vms()))


def _slots(host: Host) -> QuerySet[Reservation]:
    return Reservation.objects.filter(
        kind=ReservationKind.COMMITTED, target_host=host, zone=host.zone
    )


def _vms() -> QuerySet[ReservationAllocation]:
    return ReservationAllocation.objects.filter(reservation=OuterRef("pk"))


def _left(host: Host, moved: int) -> Evicted:
    vms = Instance.objects.filter(host=host).aggregate(
        count=Count("pk"), memory_bytes=Sum("memory_bytes", default=0)
    )
    return Evicted(
        moved=moved,
        without_place=_empty(host).count(),
        with_vms=_slots(host).filter(Exists(_vms())).count(),
        vms=vms["count"],
        vms_memory_bytes=int(vms["memory_bytes"]),
    )
