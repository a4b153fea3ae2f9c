"""Making commitments due for repair when their slots changed (spec commitments, 8.9, 9.6)."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime, timedelta

import structlog
from django.conf import settings
from django.db.models import F, Q

from capacity.models import Reservation
from commitments.domain.conditions import MAX_RESERVING_AGE_FOR_SLOWDOWN
from commitments.domain.statuses import LIVE_STATUSES
from commitments.models import Commitment, Condition
from commitments.selectors.outdated_slots import OUTDATED
from core.sql import load_sql
from journal.clock import TOLERANCE
from journal.statements import execute

log = structlog.get_logger(__name__)

LOGGED_UUIDS = 20

BROKEN = load_sql("commitments", "broken_commitments")

# Accepted, whole, but with empty slots of sizes that no flavor has now.
RENEWABLE = f"""
WITH outdated AS (
    SELECT held.id
      FROM commitments_commitment AS held
     WHERE held.id IN ({OUTDATED})
       AND held.resource_type = 'memory' AND held.ready_reason = 'Accepted'
       AND held.state IN ('pending', 'guaranteed', 'confirmed')
       AND (held.end_time IS NULL OR held.end_time > %(now)s)
       AND (held.next_reconcile_at IS NULL OR held.next_reconcile_at > %(now)s)
       AND {{patience}}
     ORDER BY held.id FOR NO KEY UPDATE OF held SKIP LOCKED
)
UPDATE commitments_commitment AS held SET next_reconcile_at = %(now)s
  FROM outdated WHERE held.id = outdated.id
"""  # noqa: S608 - constants only
HAS_NO_RETRY = """
(held.next_reconcile_at IS NULL OR held.next_reconcile_at = held.start_time
 OR held.next_reconcile_at = held.end_time OR held.next_reconcile_at > %(latest)s)
"""


def nudge_owners(slot_ids: Collection[int], now: datetime) -> None:
    """Make the commitments of slots due for repair, unless they have been waiting for long.

    Locks them by primary key. One that waits for capacity for more than half an hour is left to its
    timer, as long as slot and condition are of its present generation.
    """
    owners = list(
        Reservation.objects.filter(pk__in=slot_ids, commitment__isnull=False)
        .exclude(
            commitment__ready_reason=Condition.RESERVING,
            commitment__ready_observed_generation=F("commitment__generation"),
            commitment__ready_changed_at__lt=now - MAX_RESERVING_AGE_FOR_SLOWDOWN,
            parent_generation=F("commitment__generation"),
        )
        .values_list("commitment_id", flat=True)
    )
    due = Commitment.objects.filter(pk__in=owners).order_by("pk")
    locked = due.select_for_update(of=("self",), no_key=True).values_list("pk", flat=True)
    Commitment.objects.filter(pk__in=list(locked)).update(next_reconcile_at=now)


def nudge_outdated_of_groups(groups: Collection[str], now: datetime) -> int:
    """Make the commitments of flavor groups due that hold empty slots of old sizes.

    One that somebody works on right now is left out; the next look at its zone finds it.

    Returns:
        How many.
    """
    statement = RENEWABLE.format(chosen="slot.flavor_group_name = ANY(%(groups)s)", patience="true")
    return execute(statement, {"groups": sorted(groups), "now": now})


def nudge_outdated(zone: str, now: datetime) -> int:
    """Make the commitments of a zone due that hold empty slots of old sizes and await no retry.

    Slots that had VMs when their flavors changed size are empty some day.

    Returns:
        How many.
    """
    statement = RENEWABLE.format(chosen="slot.zone = %(zone)s", patience=HAS_NO_RETRY)
    return execute(statement, {"zone": zone, "now": now, "latest": _latest_retry(now)})


def nudge_misdated(now: datetime) -> int:
    """Make commitments due whose times only a wrong clock can have written.

    They expired although their end is to come, wait longer than any delay lasts, or took effect
    in the future though nobody asked for that: these do from now on. One of nothing holds nothing
    at any time.

    Returns:
        How many.
    """
    ended_early = Commitment.objects.filter(
        ready_reason=Condition.EXPIRED,
        next_reconcile_at__isnull=True,
        end_time__gt=now,
        state__in=LIVE_STATUSES,
        requested_amount__gt=0,
    )
    put_off = Commitment.objects.filter(
        ready_reason=Condition.RESERVING, next_reconcile_at__gt=_latest_retry(now)
    )
    begins_late = Commitment.objects.filter(
        Q(confirm_by__isnull=True) | Q(confirm_by__lte=now),
        ready_reason=Condition.ACCEPTED,
        state__in=LIVE_STATUSES,
        start_time__gt=now + TOLERANCE,
        origin="api",
    )
    nudged = 0
    for rows in (ended_early, put_off, begins_late):
        nudged += len(found := list(rows.order_by("pk").values_list("commitment_uuid", flat=True)))
        if found:
            log.warning("commitments_misdated", commitments=found[:LOGGED_UUIDS], count=len(found))
            changes = {"start_time": now} if rows is begins_late else {}
            rows.update(next_reconcile_at=now, **changes)
    return nudged


def nudge_broken(zone: str, now: datetime) -> int:
    """Make the commitments of a zone due whose slots do not add up to what was accepted.

    Pending ones that were never accepted hold no slots.

    Returns:
        How many.
    """
    return execute(BROKEN, {"zone": zone, "now": now, "latest": _latest_retry(now)})


def _latest_retry(now: datetime) -> datetime:
    """Return the last moment at which a retry can be; one further ahead is due."""
    return now + timedelta(seconds=settings.HEADROOM.retry.cap_seconds) + TOLERANCE
