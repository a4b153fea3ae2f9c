"""How far ahead a moment of the loop can be; one further ahead is a wrong clock's, and is due."""

from __future__ import annotations

from datetime import datetime, timedelta

from django.conf import settings
from django.db.models import QuerySet

from failover.conf import current_config
from failover.models import FailoverZone
from failover.selectors.zone import failover_requirements
from journal.clock import TOLERANCE


def waiting_zones(now: datetime) -> QuerySet[FailoverZone]:
    """Return the zones whose next run is not due."""
    config, chosen = current_config(failover_requirements()), settings.HEADROOM.failover
    longest = max(
        config.reconcile_interval or timedelta(),
        config.short_reconcile_interval or timedelta(),
        timedelta(seconds=chosen.reconcile_interval_seconds),
        timedelta(seconds=chosen.short_reconcile_interval_seconds),
    )
    latest = now + longest + TOLERANCE
    return FailoverZone.objects.filter(next_run_at__gt=now, next_run_at__lte=latest)


def latest_validation(now: datetime) -> datetime:
    """Return the last moment at which the next validation of a reservation can be."""
    chosen = settings.HEADROOM.failover
    most = chosen.revalidation_interval_seconds * (1 + chosen.revalidation_jitter_ratio)
    return now + timedelta(seconds=most) + TOLERANCE


def latest_cooldown(now: datetime) -> datetime:
    """Return the last moment at which a refused host is looked at again."""
    chosen = settings.HEADROOM.failover
    most = max(chosen.retry_cooldown_seconds, chosen.max_retry_cooldown_seconds)
    return now + timedelta(seconds=most) + TOLERANCE
