"""Celery entry points of the capacity app (spec commitments, 1.4, 4.1; liquid, 13.2)."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta

import structlog
from celery import shared_task
from django.conf import settings

from capacity.services.decisions import prune_decisions as prune
from capacity.services.flavor_groups import refresh_flavor_groups as refresh
from capacity.services.group_capacity import refresh_group_capacity as refresh_capacity
from capacity.services.in_flight import after_vm_changes, end_expired
from capacity.services.oversubscription import check_oversubscription as guard
from journal.actors import task_actor
from journal.clock import database_now
from journal.errors import NotReady
from journal.tracing import with_new_global_request_id

REFRESH_FLAVOR_GROUPS = "capacity.refresh_flavor_groups"
REFRESH_GROUP_CAPACITY = "capacity.refresh_group_capacity"
END_IN_FLIGHT = "capacity.end_in_flight"
PRUNE_DECISIONS = "capacity.prune_decisions"
CHECK_OVERSUBSCRIPTION = "capacity.check_oversubscription"

log = structlog.get_logger(__name__)


@shared_task(name=REFRESH_FLAVOR_GROUPS, time_limit=120, soft_time_limit=100)
def refresh_flavor_groups() -> dict[str, int | bool]:
    """Make flavor groups agree with flavors and rules."""
    with with_new_global_request_id() as request_id:
        result = refresh(actor=task_actor(REFRESH_FLAVOR_GROUPS), request_id=request_id)
    return {
        "created": len(result.created),
        "updated": len(result.updated),
        "retired": len(result.retired),
        "removed": len(result.removed),
        "resized": len(result.resized),
        "has_changed": result.has_changed,
    }


@shared_task(name=REFRESH_GROUP_CAPACITY, time_limit=600, soft_time_limit=570)
def refresh_group_capacity() -> dict[str, int]:
    """Compute the capacity of flavor groups in every zone where something changed.

    Zones that were computed just now wait for the minimum interval; so many changes cost one run.
    Before flavor groups were extracted for the first time there is nothing to compute.
    """
    chosen = settings.HEADROOM.capacity
    with with_new_global_request_id():
        try:
            refreshed = refresh_capacity(
                min_age=timedelta(seconds=chosen.min_reconcile_interval_seconds)
            )
        except NotReady as not_ready:
            log.info("capacity_not_ready", message=not_ready.message)
            return {"not_ready": 1}
    return dict(Counter(zone.outcome for zone in refreshed))


@shared_task(name=END_IN_FLIGHT, time_limit=50, soft_time_limit=45)
def end_in_flight() -> dict[str, int]:
    """End in-flight reservations that took too long, or whose VM landed, failed or went.

    Two runs at once do no harm: a row ends in one of them.
    """
    with with_new_global_request_id():
        return {"over": after_vm_changes(), "expired": end_expired()}


@shared_task(name=PRUNE_DECISIONS, time_limit=900, soft_time_limit=840)
def prune_decisions() -> dict[str, int]:
    """Forget scheduling decisions past their retention."""
    with with_new_global_request_id():
        report = prune(now=database_now())
    return {"decisions": report.decisions, "listings": report.listings}


@shared_task(name=CHECK_OVERSUBSCRIPTION, time_limit=300, soft_time_limit=270)
def check_oversubscription() -> dict[str, int]:
    """Relieve hosts that promise more than they have; runs side by side wait for each other."""
    if not settings.HEADROOM.oversubscription.check:
        return {}
    with with_new_global_request_id() as request_id:
        report = guard(actor=task_actor(CHECK_OVERSUBSCRIPTION), request_id=request_id)
    return {**report.outcomes, "moved": report.moved, "evicted": report.evicted}
