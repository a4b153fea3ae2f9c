"""Celery entry points of the placement app (spec placement, 8.4, 10.3)."""

from __future__ import annotations

from celery import shared_task
from django.conf import settings
from django.utils import timezone

from capacity.services.ledger import rebuild_host_capacity
from journal.tracing import with_new_global_request_id
from placement.services.hosts import reconcile_host_providers, take_reported_capacity
from placement.services.upkeep import fold_project_usage as fold
from placement.services.upkeep import keep_history as keep
from placement.services.upkeep import prune_changes as prune

RECONCILE_HOSTS = "placement.reconcile_hosts"
PRUNE_CHANGES = "placement.prune_changes"
KEEP_HISTORY = "placement.keep_history"
FOLD_PROJECT_USAGE = "placement.fold_project_usage"


@shared_task(name=RECONCILE_HOSTS, time_limit=900, soft_time_limit=840)
def reconcile_hosts() -> dict[str, int]:
    """Make providers follow hosts, and hosts what nova-compute reports, where configured.

    Two runs at once do no harm: each provider is locked, and what is right is left alone.
    """
    placement = settings.HEADROOM.placement
    with with_new_global_request_id():
        result: dict[str, int] = {}
        if placement.host_providers:
            done = reconcile_host_providers()
            result = {
                "created": done.created,
                "updated": done.updated,
                "retired": done.retired,
                "removed": done.removed,
                "refused": len(done.refused),
            }
        if placement.host_capacity:
            host_ids = take_reported_capacity()
            result["capacities"] = len(host_ids)
            if host_ids:
                rebuild_host_capacity(host_ids)
        return result


@shared_task(name=PRUNE_CHANGES, time_limit=120, soft_time_limit=100)
def prune_changes() -> dict[str, int]:
    """Forget changes that every reader has seen."""
    with with_new_global_request_id():
        return {"forgotten": prune()}


@shared_task(name=FOLD_PROJECT_USAGE, time_limit=120, soft_time_limit=100)
def fold_project_usage() -> dict[str, int]:
    """Sum up the usage of projects; runs at once follow each other."""
    with with_new_global_request_id():
        return {"folded": fold()}


@shared_task(name=KEEP_HISTORY, time_limit=600, soft_time_limit=570)
def keep_history() -> dict[str, int]:
    """Make room for coming events and forget old ones."""
    with with_new_global_request_id():
        return keep(timezone.now())
