"""Forgetting what is over: old runs and events, cooldowns (spec failover, 12.6)."""

from __future__ import annotations

from datetime import datetime, timedelta

from django.conf import settings

from failover.models import DueVM, FailoverCooldown, FailoverEvent, FailoverRun

KEEP_COOLDOWN = timedelta(days=1)
KEEP_DUE = timedelta(days=1)


def forget_old(*, now: datetime) -> dict[str, int]:
    """Delete runs and events past their retention, and cooldowns that ended long ago.

    A cooldown outlives its end, so that a host that is refused again waits longer. Notes of due VMs
    that nobody planned for a day, as where failover is switched off, go as well.
    """
    DueVM.objects.filter(noted_at__lt=now - KEEP_DUE).delete()
    oldest = now - timedelta(days=settings.HEADROOM.failover.event_retention_days)
    events, _ = FailoverEvent.objects.filter(happened_at__lt=oldest).delete()
    runs, _ = FailoverRun.objects.filter(started_at__lt=oldest).delete()
    cooldowns, _ = FailoverCooldown.objects.filter(until__lt=now - KEEP_COOLDOWN).delete()
    return {"events": events, "runs": runs, "cooldowns": cooldowns}
