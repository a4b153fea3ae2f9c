"""Celery entry points of the commitments app (spec commitments, 1.4)."""

from __future__ import annotations

from celery import current_app, shared_task
from django.conf import settings

from commitments.selectors.compaction import zones_with_slots
from commitments.services.compaction import compact_zone
from commitments.services.quota_usage import reconcile_changed, reconcile_full
from commitments.services.refusals import prune_refusals
from commitments.services.repair import repair_due_commitments
from commitments.services.run_history import FORGET_EVENTS, prune_runs
from commitments.services.sync import configured_cloud, sync_commitments
from commitments.services.usage import reconcile_all_usage
from commitments.services.usage_history import prune_periods
from commitments.services.verification import verify_slots as verify
from journal.actors import task_actor
from journal.clock import database_now
from journal.nudges import hint_worker
from journal.pruning import prune_append_only
from journal.tracing import with_new_global_request_id

DISPATCH_DUE = "commitments.dispatch_due"
VERIFY_SLOTS = "commitments.verify_slots"
RECONCILE_USAGE = "commitments.reconcile_usage"
RECONCILE_CHANGED_USAGE = "commitments.reconcile_changed_usage"
SYNC = "commitments.sync"
COMPACT_SLOTS = "commitments.compact_slots"
COMPACT_ZONE = "commitments.compact_zone"
PRUNE_USAGE_HISTORY = "commitments.prune_usage_history"
RECONCILE_QUOTA = "commitments.reconcile_quota"
RECONCILE_CHANGED_QUOTA = "commitments.reconcile_changed_quota"


@shared_task(name=DISPATCH_DUE, time_limit=600, soft_time_limit=540)
def dispatch_due() -> dict[str, object]:
    """Repair every commitment whose time has come."""
    with with_new_global_request_id() as request_id:
        report = repair_due_commitments(actor=task_actor(DISPATCH_DUE), request_id=request_id)
    return {"handled": report.handled, "skipped": list(report.skipped)}


@shared_task(name=VERIFY_SLOTS, time_limit=600, soft_time_limit=540)
def verify_slots() -> dict[str, object]:
    """See which VMs are in slots, move slots off lost hosts, and nudge what is not whole."""
    with with_new_global_request_id() as request_id:
        report = verify(actor=task_actor(VERIFY_SLOTS), request_id=request_id)
        if report.nudged or report.events.get("slots_revoked"):
            hint_worker(DISPATCH_DUE)
    return {**report.events, "nudged": report.nudged, "refused": sorted(report.refused)}


@shared_task(name=COMPACT_SLOTS, time_limit=50, soft_time_limit=45)
def compact_slots() -> dict[str, int]:
    """Start a run that frees hosts in every zone that has slots; one task each."""
    chosen = settings.HEADROOM.slots
    if not chosen.compaction:
        return {}
    zones = zones_with_slots()
    for zone in zones:
        current_app.send_task(
            COMPACT_ZONE, args=[zone], expires=chosen.compaction_interval_seconds, retry=False
        )
    return {"zones": len(zones)}


@shared_task(name=COMPACT_ZONE, time_limit=900, soft_time_limit=840)
def compact_one_zone(zone: str) -> dict[str, object]:
    """Free hosts of a zone by moving empty slots."""
    with with_new_global_request_id() as request_id:
        done = compact_zone(
            zone, actor=task_actor(COMPACT_ZONE), request_id=request_id, now=database_now()
        )
    if done.run is None:
        return {"outcome": "skipped"}
    return {
        "outcome": done.run.outcome,
        "hosts_freed": done.run.hosts_freed,
        "slots_moved": done.run.slots_moved,
    }


@shared_task(name=RECONCILE_USAGE, time_limit=600, soft_time_limit=540)
def reconcile_usage() -> dict[str, int]:
    """Assign VMs to commitments for every project that has any."""
    with with_new_global_request_id() as request_id:
        projects = reconcile_all_usage(actor=task_actor(RECONCILE_USAGE), request_id=request_id)
    return {"projects": projects}


@shared_task(name=RECONCILE_CHANGED_USAGE, time_limit=600, soft_time_limit=540)
def reconcile_changed_usage() -> dict[str, int]:
    """Assign VMs to commitments for the projects whose commitments changed."""
    with with_new_global_request_id() as request_id:
        projects = reconcile_all_usage(
            actor=task_actor(RECONCILE_CHANGED_USAGE), request_id=request_id, only_changed=True
        )
    return {"projects": projects}


@shared_task(name=PRUNE_USAGE_HISTORY, time_limit=900, soft_time_limit=840)
def prune_usage_history() -> dict[str, int]:
    """Forget which commitments covered which VMs, what was refused, and what ran long ago."""
    with with_new_global_request_id():
        now = database_now()
        return {
            "periods": prune_periods(now=now),
            "refusals": prune_refusals(now=now),
            "runs": prune_runs(now=now),
            "events": prune_append_only(FORGET_EVENTS, now=now),
        }


@shared_task(name=RECONCILE_QUOTA, time_limit=600, soft_time_limit=540)
def reconcile_quota() -> dict[str, int]:
    """Count the usage of every project's quota."""
    with with_new_global_request_id():
        run = reconcile_full()
    return {"projects": run.projects, "written": run.written, "failed": len(run.failed)}


@shared_task(name=RECONCILE_CHANGED_QUOTA, time_limit=600, soft_time_limit=540)
def reconcile_changed_quota() -> dict[str, int]:
    """Count the usage of projects whose quota, VMs or commitments changed."""
    with with_new_global_request_id():
        run = reconcile_changed()
    return {"projects": run.projects, "written": run.written, "failed": len(run.failed)}


@shared_task(name=SYNC, time_limit=900, soft_time_limit=840)
def sync() -> dict[str, object]:
    """Bring commitments in line with what Limes lists."""
    with with_new_global_request_id() as request_id:
        report = sync_commitments(configured_cloud(), actor=task_actor(SYNC), request_id=request_id)
    return {"outcome": report.outcome, "error_code": report.error_code}
