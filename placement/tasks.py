"""Celery entry points of the placement app (spec placement, 8.4, 10.3)."""

from __future__ import annotations

import structlog
from django.conf import settings

from capacity.ledger.allocated import drift_from
from capacity.ledger.rooms import rebuild_host_capacity
from core.jobs import Run, every, job
from journal.leases import held_lease
from placement import metrics
from placement.cutover.peer import opened_peer
from placement.cutover.rounds import one_round
from placement.cutover.state import WrongPhaseError, current_phase
from placement.e2e.periodic import check_served_api
from placement.gateway.asking import by_service_account
from placement.gateway.drift import is_hybrid, verify
from placement.gateway.split import has_split_writes, heal
from placement.gateway.sync import is_followed, sync_names
from placement.models import Phase
from placement.selectors.allocated import NAME
from placement.services.audit import usage_drift
from placement.services.hosts import reconcile_host_providers, take_reported_capacity
from placement.services.nudges import RECONCILE_HOSTS
from placement.services.rooms import rooms_follow_allocations
from placement.services.upkeep import fold_project_usage as fold
from placement.services.upkeep import keep_history as keep
from placement.services.upkeep import prune_changes as prune

PRUNE_CHANGES = "placement.prune_changes"
KEEP_HISTORY = "placement.keep_history"
FOLD_PROJECT_USAGE = "placement.fold_project_usage"
AUDIT_USAGE = "placement.audit_usage"
SETTLE_SPLIT_WRITES = "placement.settle_split_writes"
VERIFY_HYBRID = "placement.verify_hybrid"
SYNC_NAMES = "placement.sync_names"
CHECK_SERVED_API = "placement.check_served_api"
FOLLOW_CUTOVER = "placement.follow_cutover"
MOST_NAMED = 20

log = structlog.get_logger(__name__)


@job(RECONCILE_HOSTS, every(60, "placement-hosts"), limits=(840, 900))
def reconcile_hosts(_: Run) -> dict[str, int]:
    """Make providers follow hosts, and hosts what nova-compute reports, where configured.

    Two runs at once do no harm: each provider is locked, and what is right is left alone.
    """
    placement = settings.HEADROOM.placement
    result: dict[str, int] = {}
    if placement.host_providers:
        result = _follow_hosts()
    if placement.host_capacity:
        host_ids = take_reported_capacity()
        result["capacities"] = len(host_ids)
        if host_ids:
            rebuild_host_capacity(host_ids)
    if rooms_follow_allocations():
        # What a write did not count itself: a host that came, or was counted from the VM list.
        differing = [one.host_id for one in drift_from(NAME)]
        result["recounted"] = rebuild_host_capacity(differing) if differing else 0
    return result


def _follow_hosts() -> dict[str, int]:
    try:
        done = reconcile_host_providers()
    except WrongPhaseError as error:
        log.warning("placement_hosts_wait", error=error.message)
        return {"moving": 1}
    return {
        "created": done.created,
        "updated": done.updated,
        "retired": done.retired,
        "removed": done.removed,
        "refused": len(done.refused),
    }


@job(FOLLOW_CUTOVER, every(5, "placement-cutover"), limits=(100, 120), queue="soon")
def follow_cutover(_: Run) -> dict[str, int]:
    """Copy what moved at the other Placement, or mirror what we wrote; a lease keeps runs apart."""
    return one_round()


@job(PRUNE_CHANGES, every(600, "placement-changes"), limits=(100, 120))
def prune_changes(_: Run) -> dict[str, int]:
    """Forget changes that every reader has seen."""
    return {"forgotten": prune()}


@job(FOLD_PROJECT_USAGE, every(30, "placement-usage"), limits=(100, 120))
def fold_project_usage(_: Run) -> dict[str, int]:
    """Sum up the usage of projects; runs at once follow each other."""
    return {"folded": fold()}


@job(AUDIT_USAGE, every(3600, "placement-audit"), limits=(570, 600), queue="long")
def audit_usage(_: Run) -> dict[str, int]:
    """Count the inventories whose used amount is not the sum of their allocations; repair none."""
    found = usage_drift()
    if found:
        metrics.USAGE_DRIFT.inc(len(found))
        subjects = sorted({finding.subject for finding in found})[:MOST_NAMED]
        log.error("placement_usage_drift", inventories=len(found), providers=subjects)
    return {"drifted": len(found)}


@job(SETTLE_SPLIT_WRITES, every(15, "placement-split-writes"), limits=(100, 120), queue="soon")
def settle_split_writes(_: Run) -> dict[str, int]:
    """Bring to an end what another Placement did not answer; see :mod:`placement.gateway.split`."""
    if not settings.HEADROOM.gateway.upstream_url or not has_split_writes():
        return {}
    return heal(by_service_account())


@job(SYNC_NAMES, every(60, "placement-names"), limits=(110, 120))
def sync_names_of_upstream(_: Run) -> dict[str, int]:
    """Copy traits and resource classes of another Placement, where there is one that we may ask."""
    if not is_followed() or current_phase() is not Phase.OFF:  # whose names are copied already
        return {}
    with held_lease(SYNC_NAMES) as is_ours:
        done = sync_names() if is_ours else []
    return {
        "inserted": sum(one.inserted for one in done),
        "deleted": sum(one.deleted for one in done),
    }


@job(VERIFY_HYBRID, every(900, "placement-hybrid"), limits=(840, 900), queue="long")
def verify_hybrid(_: Run) -> dict[str, int]:
    """Look whether both sides of mode ``hybrid`` fit together, where we may ask the other one."""
    if not is_followed() or not is_hybrid():
        return {}
    with held_lease(VERIFY_HYBRID) as is_ours:
        if not is_ours:
            return {}
        with opened_peer() as peer:
            report = verify(peer)
    if report.findings:
        subjects = [one.subject for one in report.findings[:MOST_NAMED]]
        log.warning("gateway_sides_differ", counts=dict(report.counts), names=subjects)
    return dict(report.counts)


@job(CHECK_SERVED_API, every(300, "placement-checks"), limits=(280, 300))
def check_served_placement(_: Run) -> dict[str, int]:
    """Check the Placement API of the settings from outside, where one is set."""
    if not settings.HEADROOM.gateway.checks_url:
        return {}
    with held_lease(CHECK_SERVED_API) as is_ours:
        return check_served_api() if is_ours else {}


@job(KEEP_HISTORY, every(21600, "placement-history"), limits=(570, 600), queue="long")
def keep_history(run: Run) -> dict[str, int]:
    """Make room for coming events and forget old ones."""
    return keep(run.now)
