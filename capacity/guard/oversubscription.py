"""The guard over hosts that promise more than they have (spec commitments, 11).

A host that lacks memory, vCPUs, network, disk I/O or GPUs for longer than the grace period loses
slots of commitments: one set that clears it, moved to other hosts where there is room, else evicted
for repair to place again. When it was first seen and last looked at stands on its room, so a
restart forgets nothing.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Self

import structlog
from django.conf import settings
from django.db import transaction

from capacity.guard.amounts import NOTHING, Amounts
from capacity.guard.eviction import plan_eviction
from capacity.guard.slot_eviction import (
    Departures,
    EvictionSpoiled,
    apply_departures,
    evictable_slots,
    excess_of,
    place_elsewhere,
)
from capacity.host_table import current_host_table
from capacity.ledger.oversubscribed import (
    HAS_CAPACITY,
    LACKS,
    forget_resolved,
    note_oversubscribed,
)
from capacity.locks import zone_lock
from capacity.metrics import EVICTED, MOVED
from capacity.models import HostCapacity
from core.jobs import Run, tried
from journal.actors import Actor
from journal.clock import TOLERANCE, database_now, is_ahead, trusted
from journal.errors import Busy, NotReady
from journal.statements import fetch_rows

log = structlog.get_logger(__name__)

DUE_HOSTS = f"""
SELECT room.host_id FROM capacity_hostcapacity AS room
 WHERE {HAS_CAPACITY} AND {LACKS}
   AND (room.oversubscription_checked_at IS NULL OR room.oversubscription_checked_at <= %s
        OR room.oversubscription_checked_at > %s)
 ORDER BY room.zone, room.host_id
"""  # noqa: S608 - constants only


class HostOutcome(StrEnum):
    """What a guarded run did about a host."""

    SKIPPED = "skipped"
    BUSY = "busy"
    RESOLVED = "resolved"
    GRACE = "in grace"
    REPORTED = "only reported"
    CLEARED = "cleared"
    RELIEVED = "relieved in part"
    STUCK = "needs manual intervention"


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardPolicy:
    """How the guard acts.

    Attributes:
        evict: Whether slots leave hosts; otherwise hosts are only reported.
        grace_period: How long a host may be over-subscribed first.
        min_check_interval: Shortest time between two checks of one host.
    """

    evict: bool = True
    grace_period: timedelta = timedelta(minutes=3)
    min_check_interval: timedelta = timedelta(minutes=1)

    @classmethod
    def from_settings(cls) -> Self:
        """Return the policy of this deployment."""
        chosen = settings.HEADROOM.oversubscription
        return cls(
            evict=chosen.evict,
            grace_period=timedelta(seconds=chosen.grace_period_seconds),
            min_check_interval=timedelta(seconds=chosen.min_check_interval_seconds),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardReport:
    """What a run of the guard did.

    Attributes:
        outcomes: Outcome to number of hosts.
        moved: Slots that found another host.
        evicted: Slots that lost their host.
    """

    outcomes: dict[str, int] = field(default_factory=dict)
    moved: int = 0
    evicted: int = 0


@dataclass(slots=True, kw_only=True)
class _Run(Run):
    """One run, and how it acts."""

    policy: GuardPolicy


@dataclass(frozen=True, slots=True, kw_only=True)
class _Done:
    """What was done about one host."""

    outcome: HostOutcome
    zone: str = ""
    moved: int = 0
    evicted: int = 0


def check_oversubscription(
    *,
    actor: Actor,
    request_id: str,
    now: datetime | None = None,
    policy: GuardPolicy | None = None,
) -> GuardReport:
    """Look at every host that lacks something, each in a transaction under its zone's lock.

    Args:
        actor: Who checks.
        policy: How to act; that of the settings when left out.
    """
    run = _Run(
        actor=actor,
        request_id=request_id,
        now=now or database_now(),
        policy=policy or GuardPolicy.from_settings(),
    )
    counts = Counter({HostOutcome.RESOLVED: forget_resolved()})
    moved = evicted = 0
    for host_id in _due_hosts(run):
        done = _check_host(host_id, run)
        counts[done.outcome] += 1
        moved, evicted = moved + done.moved, evicted + done.evicted
        _count(done)
    return GuardReport(
        outcomes={outcome.value: count for outcome, count in counts.items() if count},
        moved=moved,
        evicted=evicted,
    )


def _due_hosts(run: _Run) -> list[int]:
    zones = fetch_rows("SELECT DISTINCT zone FROM capacity_hostcapacity")
    for (zone,) in zones:  # at zero: nobody sees a series grow that begins at 12
        EVICTED.labels(az=zone)
        MOVED.labels(az=zone)
    moments = [run.now - run.policy.min_check_interval, run.now + TOLERANCE]
    return [row[0] for row in fetch_rows(DUE_HOSTS, moments)]


def _check_host(host_id: int, run: _Run) -> _Done:
    try:
        return tried(
            transaction.atomic(durable=True)(lambda: _guarded(host_id, run)),
            again_after=lambda error: isinstance(error, EvictionSpoiled),
            event="eviction_spoiled",
        )
    except NotReady as not_ready:
        log.info("guard_not_ready", host_id=host_id, message=not_ready.message)
        return _Done(outcome=HostOutcome.SKIPPED)
    except (EvictionSpoiled, Busy) as busy:
        log.info("guard_zone_busy", host_id=host_id, message=busy.message)
        return _Done(outcome=HostOutcome.BUSY)


def _guarded(host_id: int, run: _Run) -> _Done:
    """Look at one host under its zone's lock, and act when its time has come."""
    room = _room_of(host_id)
    if room is not None:
        zone_lock([room.zone])
        room = _room_of(host_id)  # another run may have been here, or the host gone, as we waited
    if room is None or _is_too_soon(room, run) or not _is_ready(room.host.name):
        return _Done(outcome=HostOutcome.SKIPPED)
    excess = excess_of(room)
    if excess == NOTHING:
        note_oversubscribed(room.pk, now=run.now, since=None)
        return _Done(outcome=HostOutcome.RESOLVED)
    since = trusted(room.oversubscribed_since, run.now)
    if since is None or run.now < since + run.policy.grace_period:
        note_oversubscribed(room.pk, now=run.now, since=since or run.now)
        return _Done(outcome=HostOutcome.GRACE)
    if not run.policy.evict:
        note_oversubscribed(room.pk, now=run.now, since=run.now)
        log.warning("host_over_subscribed", host=room.host.name, excess=excess.named())
        return _Done(outcome=HostOutcome.REPORTED)
    return _relieve(room, excess, run)


def _room_of(host_id: int) -> HostCapacity | None:
    return HostCapacity.objects.select_related("host").filter(host_id=host_id).first()


def _relieve(room: HostCapacity, excess: Amounts, run: _Run) -> _Done:
    host = room.host
    slots = evictable_slots(host)
    plan = plan_eviction(slots, excess)
    if not plan.slot_ids:
        note_oversubscribed(room.pk, now=run.now, since=run.now)
        log.error("host_needs_manual_intervention", host=host.name, excess=excess.named())
        return _Done(outcome=HostOutcome.STUCK)
    leaving = set(plan.slot_ids)
    departures = Departures(
        host=host,
        excess=excess,
        plan=plan,
        slots=tuple(slot for slot in slots if slot.slot_id in leaving),
        moves=place_elsewhere(host, plan.slot_ids),
    )
    apply_departures(departures, now=run.now, actor=run.actor, request_id=run.request_id)
    note_oversubscribed(room.pk, now=run.now, since=None if plan.clears else run.now)
    log.warning(
        "host_relieved",
        host=host.name,
        moved=len(departures.moves),
        evicted=len(departures.evicted_ids),
        excess=excess.named(),
    )
    return _Done(
        outcome=HostOutcome.CLEARED if plan.clears else HostOutcome.RELIEVED,
        zone=room.zone,
        moved=len(departures.moves),
        evicted=len(departures.evicted_ids),
    )


def _is_too_soon(room: HostCapacity, run: _Run) -> bool:
    checked_at = room.oversubscription_checked_at
    if checked_at is None or is_ahead(checked_at, run.now):
        return False
    return run.now < checked_at + run.policy.min_check_interval


def _is_ready(host_name: str) -> bool:
    table = current_host_table()
    row = table.row_of.get(host_name)
    return row is not None and bool(table.state_ok[row])


def _count(done: _Done) -> None:
    if done.moved:
        MOVED.labels(az=done.zone).inc(done.moved)
    if done.evicted:
        EVICTED.labels(az=done.zone).inc(done.evicted)
