"""Slots whose host is lost find another one (spec commitments, 9; issue: slots over time).

A host is lost when it has been down, or is being taken out of service for good, for longer than a
grace period. Its empty slots move where there is room, in one transaction; where there is none they
stay, since a host that comes back is better than a promise without any. The same holds for slots
that the agent of their host will not make: it is down and has not made them, or failed for good. A
slot on a host that is of another zone now is worth nothing: it moves, or loses its host and is
placed again by the repair.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

import structlog
from django.conf import settings
from django.db import transaction
from django.db.models import Count, Exists, F, OuterRef, Q, QuerySet

from capacity.agents.unmade import unmade_slots
from capacity.groups.reading import load_group_definitions
from capacity.ledger.apply import move_slots, write_slots
from capacity.ledger.plan import Move, Standing
from capacity.ledger.rooms import lock_reservations
from capacity.locks import zone_lock
from capacity.models import ReadyReason, Reservation, ReservationAllocation, ReservationKind
from capacity.nova.slot_requests import places_elsewhere
from commitments.metrics.slots import SLOTS_MOVED
from commitments.services.apply import decision_record
from commitments.services.nudges import nudge_owners
from commitments.services.slot_story import REVOKED, SlotNews, record_slot_news
from core.chunks import in_chunks
from hosts.domain.shrinking import has_shrunk_too_much
from hosts.feed.lists import PassKind
from hosts.feed.state import known_until
from hosts.models import Host
from journal.actors import Actor
from journal.errors import NotReady
from scheduling.decision import Decision, explain_removals

log = structlog.get_logger(__name__)

CHUNK_SLOTS = 500
MOVED = "slots_moved"
LEFT_LOST_HOST = "slot_left_lost_host"
LEFT_AGENT = "slot_left_agent"
NOTHING_UNMADE: Mapping[int, str] = {}


def move_lost_slots(
    zone: str,
    *,
    now: datetime,
    actor: Actor,
    request_id: str,
    unmade: Mapping[int, str] = NOTHING_UNMADE,
) -> Counter[str]:
    """Move the empty slots of lost and misplaced hosts of a zone, in chunks under its lock.

    The caller believes the list of the zone's hosts: see :func:`refusal_of_hosts`.

    Args:
        unmade: Slots that the agents of their hosts will not make, as
            :func:`capacity.agents.unmade.unmade_slots` finds them.

    Returns:
        How many slots moved, and how many lost their host.

    Raises:
        Busy: a planner has the zone for longer than the lock timeout.
    """
    events: Counter[str] = Counter()
    lost = list(lost_hosts_of(zone, now).values_list("pk", flat=True))
    waiting = sorted(_empty_slots(zone, lost, unmade).values_list("pk", flat=True))
    if not waiting:
        return events
    try:
        load_group_definitions(include_retired=True)
    except NotReady as not_ready:
        log.info("relocation_not_ready", message=not_ready.message)
        return events
    for ids in in_chunks(waiting, CHUNK_SLOTS):
        with transaction.atomic(durable=True):
            zone_lock([zone])
            unmade = unmade and unmade_slots(zone)
            chunk = list(
                _empty_slots(zone, lost, unmade)
                .filter(pk__in=ids)
                .select_related("target_host", "commitment")
                .order_by("-memory_bytes", "pk")
            )
            found = relocate(chunk, unmade, now=now, actor=actor, request_id=request_id)
        for name, count in found.items():
            SLOTS_MOVED.labels(result=name.removeprefix("slots_")).inc(count)
        events.update(found)
    return events


def lost_hosts_of(zone: str, now: datetime) -> QuerySet[Host]:
    """Return the hosts of a zone that have been down, or on their way out, for the grace period."""
    return Host.objects.filter(_is_lost(now), zone=zone)


def _is_lost(now: datetime) -> Q:
    grace = timedelta(seconds=settings.HEADROOM.slots.lost_host_grace_seconds)
    since = known_until(now, PassKind.HOSTS) - grace
    return Q(down_since__lte=since) | Q(terminating_since__lte=since)


def refusal_of_hosts(zone: str, now: datetime) -> str:
    """Return why the host list of a zone is not believed; empty when it is.

    Many hosts that are down at once mean rather that nobody hears from them, and many that left the
    zone at once that the list of aggregates was cut short. Then no slot leaves its host for that.
    """
    of_zone = Host.objects.filter(zone=zone).aggregate(
        hosts=Count("pk"), lost=Count("pk", filter=_is_lost(now))
    )
    hosts, lost, left = of_zone["hosts"], of_zone["lost"], _hosts_elsewhere(zone)
    stays = "no slot leaves its host for that until they are back"
    if _is_too_much(hosts, hosts - lost):
        return f"{lost} of {hosts} hosts are down or leaving at once: {stays}"
    if _is_too_much(hosts + left, hosts):
        return f"{left} of {hosts + left} hosts are not in the zone any more: {stays}"
    return ""


def _is_too_much(before: int, now: int) -> bool:
    chosen = settings.HEADROOM.slots
    return has_shrunk_too_much(
        before, now, max_ratio=chosen.max_drop_ratio, max_rows=chosen.max_drop_rows
    )


def _hosts_elsewhere(zone: str) -> int:
    """Return how many hosts outside a zone hold slots of it."""
    slots = Reservation.objects.filter(
        ~Q(target_host__zone=zone),
        kind=ReservationKind.COMMITTED,
        zone=zone,
        target_host__isnull=False,
    )
    return slots.order_by().values("target_host_id").distinct().count()


def _empty_slots(
    zone: str, lost: Sequence[int], unmade: Mapping[int, str]
) -> QuerySet[Reservation]:
    """Return the slots without VMs that are on a lost host, on one elsewhere, or not made."""
    listed = ReservationAllocation.objects.filter(reservation=OuterRef("pk"))
    return Reservation.objects.filter(
        Q(target_host_id__in=lost) | Q(pk__in=unmade) | ~Q(target_host__zone=F("zone")),
        ~Exists(listed),
        kind=ReservationKind.COMMITTED,
        zone=zone,
        target_host__isnull=False,
    )


def relocate(
    slots: Sequence[Reservation],
    unmade: Mapping[int, str],
    *,
    now: datetime,
    actor: Actor,
    request_id: str,
    unmade_action: str = LEFT_AGENT,
) -> Counter[str]:
    """Move slots to other hosts; call under the lock of their zone.

    Args:
        unmade: Slot to why it leaves; the others' hosts are lost, or of another zone.
        unmade_action: What is recorded of the former.
    """
    decisions = places_elsewhere(
        slots, [slot.target_host.name if slot.target_host else "" for slot in slots]
    )
    # Only what found a place, and what is worth nothing where it is, is written at all.
    leaving = _still_empty(
        [slot for slot in slots if slot.pk in decisions or _is_misplaced(slot)], decisions
    )
    why = {pk: _why(slot, unmade) for pk, slot in leaving.items()}
    moves = {pk: _move(slot, decisions.get(pk)) for pk, slot in leaving.items()}
    full = move_slots(leaving, moves.values(), now=now)
    stay = {pk for pk, move in moves.items() if move.host_id in full}
    revoked = {pk: _move(leaving[pk], None) for pk in stay if _is_misplaced(leaving[pk])}
    move_slots(leaving, revoked.values(), now=now)
    left = [slot for pk, slot in leaving.items() if pk not in stay or pk in revoked]
    write_slots(left)
    news: dict[str, list[SlotNews]] = {LEFT_LOST_HOST: [], unmade_action: []}
    for slot in left:
        line = _line(slot, why[slot.pk], decisions.get(slot.pk))
        action = unmade_action if why[slot.pk][1] == unmade.get(slot.pk) else LEFT_LOST_HOST
        news[action].append(SlotNews(slot=slot, lines=[line]))
    nudge_owners([slot.pk for slot in left if slot.target_host_id is None], now)
    for action, some in news.items():
        record_slot_news(some, actor=actor, request_id=request_id, action=action)
    return Counter(REVOKED if slot.target_host_id is None else MOVED for slot in left)


def _still_empty(
    slots: Sequence[Reservation], decisions: Mapping[int, Decision]
) -> dict[int, Reservation]:
    """Lock the rooms of old and new hosts and the slots; return those that no VM came into.

    VMs are booked into slots without the zone lock.
    """
    targets = {decision.host_id for decision in decisions.values() if decision.host_id is not None}
    locked = lock_reservations([slot.pk for slot in slots], hosts=targets)
    listed = ReservationAllocation.objects.filter(reservation_id__in=locked)
    taken = set(listed.values_list("reservation_id", flat=True))
    return {slot.pk: slot for slot in slots if slot.pk in locked and slot.pk not in taken}


def _move(slot: Reservation, decision: Decision | None) -> Move:
    if decision is None:
        message = f"host {' '.join(_why(slot, NOTHING_UNMADE))}; it is placed again"
        standing = Standing(reason=ReadyReason.REVOKED, message=message, decision=slot.decision)
        return Move(slot_id=slot.pk, standing=standing)
    return Move(
        slot_id=slot.pk,
        host_id=decision.host_id,
        block=slot.size,
        standing=Standing(
            reason=ReadyReason.ACTIVE,
            message=explain_removals(decision),
            decision=decision_record(decision),
        ),
    )


def _why(slot: Reservation, unmade: Mapping[int, str]) -> tuple[str, str]:
    """Return the host that a slot has to leave, and what is wrong with it."""
    host = slot.target_host.name if slot.target_host is not None else ""
    return host, "is of another zone" if _is_misplaced(slot) else unmade.get(slot.pk, "is lost")


def _line(slot: Reservation, why: tuple[str, str], decision: Decision | None) -> str:
    host, problem = why
    if slot.target_host_id is None or decision is None:
        return f"lost its host {host}, which {problem}"
    return f"moved to {decision.host_name}: host {host} {problem}"


def _is_misplaced(slot: Reservation) -> bool:
    return slot.target_host is not None and slot.target_host.zone != slot.zone
