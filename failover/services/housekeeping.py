"""Forgetting what is over: old runs and events, cooldowns (spec failover, 12.6)."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final

from django.conf import settings
from django.db.models import Max

from failover.choices import EventReason
from failover.drill_models import EvacuationPlan, FailureDrill
from failover.models import DueVM, FailoverCooldown, FailoverRun
from journal.pruning import forget

KEEP_COOLDOWN = timedelta(days=1)
KEEP_DUE = timedelta(days=1)
KEEP_PASSED = timedelta(days=1)
"""That a slot was found in order is told twice an hour for each, most of all that happens."""
FORGET_ROWS: Final = 20_000

_FORGET_EVENTS = """
DELETE FROM failover_failoverevent WHERE id = ANY (ARRAY(
    SELECT id FROM failover_failoverevent WHERE happened_at < %(oldest)s {more}
     ORDER BY happened_at LIMIT %(rows)s FOR UPDATE SKIP LOCKED))
"""
FORGET_EVENTS: Final = _FORGET_EVENTS.format(more="")
FORGET_PASSED: Final = _FORGET_EVENTS.format(
    more=f"AND reason = '{EventReason.VALIDATION_PASSED.value}'"
)


def forget_old(*, now: datetime) -> dict[str, int]:
    """Delete runs, events, drills and evacuations past their retention, and cooldowns.

    A cooldown outlives its end, so that a host that is refused again waits longer. Notes of due VMs
    that nobody planned for a day, as where failover is switched off, go as well; validations that
    passed are kept for a day, as nobody asks for older ones.
    """
    DueVM.objects.filter(noted_at__lt=now - KEEP_DUE).delete()
    oldest = now - timedelta(days=settings.HEADROOM.failover.event_retention_days)
    events = forget(FORGET_EVENTS, FORGET_ROWS, oldest=oldest) + forget(
        FORGET_PASSED, FORGET_ROWS, oldest=max(oldest, now - KEEP_PASSED)
    )
    runs, _ = FailoverRun.objects.filter(started_at__lt=oldest).delete()
    drills = _forget_drills(oldest)
    evacuations, _ = EvacuationPlan.objects.filter(finished_at__lt=oldest).delete()
    cooldowns, _ = FailoverCooldown.objects.filter(until__lt=now - KEEP_COOLDOWN).delete()
    return {
        "events": events,
        "runs": runs,
        "drills": drills,
        "evacuations": evacuations,
        "cooldowns": cooldowns,
    }


def _forget_drills(oldest: datetime) -> int:
    """Delete drills past their retention, but the last of each zone and scope, which is told."""
    last = FailureDrill.objects.order_by().values("zone", "scope").annotate(last=Max("pk"))
    old = FailureDrill.objects.filter(finished_at__lt=oldest)
    drills, _ = old.exclude(pk__in=last.values("last")).delete()
    return drills
