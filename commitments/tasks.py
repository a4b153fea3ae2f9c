"""Celery entry points of the commitments app (spec commitments, 1.4)."""

from __future__ import annotations

from django.conf import settings

from commitments.selectors.compaction import zones_with_slots
from commitments.services.compaction import compact_zone
from commitments.services.quota_usage import QuotaRun, reconcile_changed, reconcile_full
from commitments.services.repair import repair_due_commitments
from commitments.services.retention import (
    FORGET_EVENTS,
    prune_periods,
    prune_refusals,
    prune_runs,
)
from commitments.services.sync import configured_cloud, sync_commitments
from commitments.services.usage import reconcile_all_usage
from commitments.services.usage_hours import forget_usage_hours, keep_usage_hours
from commitments.services.verification import verify_slots as verify
from core.jobs import Run, every, job
from journal.nudges import hint_worker, send_task
from journal.pruning import prune_append_only

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

CHOSEN = settings.HEADROOM
SYNCS = CHOSEN.sync.enabled and CHOSEN.keystone.is_complete
SYNC_BEATS = [every(CHOSEN.sync.interval_seconds, "sync")] if SYNCS else []


@job(
    DISPATCH_DUE,
    every(CHOSEN.retry.dispatch_interval_seconds, "commitments-due"),
    limits=(540, 600),
)
def dispatch_due(run: Run) -> dict[str, object]:
    """Repair every commitment whose time has come."""
    report = repair_due_commitments(actor=run.actor, request_id=run.request_id)
    return {"handled": report.handled, "skipped": list(report.skipped)}


@job(VERIFY_SLOTS, every(CHOSEN.slots.check_interval_seconds, "slots"), limits=(540, 600))
def verify_slots(run: Run) -> dict[str, object]:
    """See which VMs are in slots, move slots off lost hosts, and nudge what is not whole."""
    report = verify(actor=run.actor, request_id=run.request_id)
    if report.nudged or report.events.get("slots_revoked"):
        hint_worker(DISPATCH_DUE)
    return {**report.events, "nudged": report.nudged, "refused": sorted(report.refused)}


@job(
    COMPACT_SLOTS,
    every(CHOSEN.slots.compaction_interval_seconds, "compaction"),
    limits=(45, 50),
    queue="soon",
)
def compact_slots(_: Run) -> dict[str, int]:
    """Start a run that frees hosts in every zone that has slots; one task each."""
    chosen = settings.HEADROOM.slots
    if not chosen.compaction:
        return {}
    zones = zones_with_slots()
    for zone in zones:
        send_task(COMPACT_ZONE, [zone], expires=chosen.compaction_interval_seconds)
    return {"zones": len(zones)}


@job(COMPACT_ZONE, limits=(840, 900), queue="long")
def compact_one_zone(run: Run, zone: str) -> dict[str, object]:
    """Free hosts of a zone by moving empty slots."""
    done = compact_zone(zone, actor=run.actor, request_id=run.request_id, now=run.now)
    if done.run is None:
        return {"outcome": "skipped"}
    return {
        "outcome": done.run.outcome,
        "hosts_freed": done.run.hosts_freed,
        "slots_moved": done.run.slots_moved,
    }


@job(RECONCILE_USAGE, every(CHOSEN.usage.cooldown_seconds, "usage"), limits=(540, 600))
def reconcile_usage(run: Run) -> dict[str, int]:
    """Assign VMs to commitments for every project that has any, and keep the hours of all."""
    projects = reconcile_all_usage(actor=run.actor, request_id=run.request_id)
    keep_usage_hours()
    return {"projects": projects}


@job(
    RECONCILE_CHANGED_USAGE,
    every(CHOSEN.usage.changes_interval_seconds, "usage-changes"),
    limits=(540, 600),
)
def reconcile_changed_usage(run: Run) -> dict[str, int]:
    """Assign VMs to commitments for the projects whose commitments changed."""
    projects = reconcile_all_usage(actor=run.actor, request_id=run.request_id, only_changed=True)
    return {"projects": projects}


@job(PRUNE_USAGE_HISTORY, every(3600, "usage-history"), limits=(840, 900), queue="long")
def prune_usage_history(run: Run) -> dict[str, int]:
    """Forget which commitments covered which VMs, what was refused, and what ran long ago."""
    return {
        "periods": prune_periods(now=run.now),
        "hours": forget_usage_hours(now=run.now),
        "refusals": prune_refusals(now=run.now),
        "runs": prune_runs(now=run.now),
        "events": prune_append_only(FORGET_EVENTS, now=run.now),
    }


@job(
    RECONCILE_QUOTA, every(CHOSEN.quota.full_reconcile_interval_seconds, "quota"), limits=(540, 600)
)
def reconcile_quota(_: Run) -> dict[str, int]:
    """Count the usage of every project's quota."""
    return _counted(reconcile_full())


@job(
    RECONCILE_CHANGED_QUOTA,
    every(CHOSEN.quota.changes_interval_seconds, "quota-changes"),
    limits=(540, 600),
)
def reconcile_changed_quota(_: Run) -> dict[str, int]:
    """Count the usage of projects whose quota, VMs or commitments changed."""
    return _counted(reconcile_changed())


def _counted(done: QuotaRun) -> dict[str, int]:
    return {"projects": done.projects, "written": done.written, "failed": len(done.failed)}


@job(SYNC, *SYNC_BEATS, limits=(840, 900), queue="long")
def sync(run: Run) -> dict[str, object]:
    """Bring commitments in line with what Limes lists."""
    report = sync_commitments(configured_cloud(), actor=run.actor, request_id=run.request_id)
    return {"outcome": report.outcome, "error_code": report.error_code}
