"""Celery entry points of the capacity app (spec commitments, 1.4, 4.1; liquid, 13.2)."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from datetime import timedelta

import structlog
from django.conf import settings

from capacity.agents.following import follow_slots as follow
from capacity.agents.nudges import FOLLOW_SLOTS
from capacity.figures.group_capacity import refresh_group_capacity as refresh_capacity
from capacity.figures.history import keep_history as keep
from capacity.groups.refreshing import refresh_flavor_groups as refresh
from capacity.guard.oversubscription import check_oversubscription as guard
from capacity.ledger.leaving import give_back_left_rooms
from capacity.ledger.readiness import agree_with_agents
from capacity.ledger.recounting import follow_source
from capacity.ledger.resources import verify_reserved as verify
from capacity.nova.decisions import prune_decisions as prune
from capacity.nova.in_flight import after_vm_changes, end_expired
from core.jobs import Run, every, job, nightly
from journal.errors import NotReady

REFRESH_FLAVOR_GROUPS = "capacity.refresh_flavor_groups"
REFRESH_GROUP_CAPACITY = "capacity.refresh_group_capacity"
END_IN_FLIGHT = "capacity.end_in_flight"
RECOUNT_ROOMS = "capacity.recount_rooms"
PRUNE_DECISIONS = "capacity.prune_decisions"
KEEP_HISTORY = "capacity.keep_history"
VERIFY_RESERVED = "capacity.verify_reserved"
CHECK_OVERSUBSCRIPTION = "capacity.check_oversubscription"

#: A look costs a query a zone; what changed is computed when the minimum interval is over.
LOOK_SECONDS = max(1, min(10, settings.HEADROOM.capacity.min_reconcile_interval_seconds))

log = structlog.get_logger(__name__)


@job(REFRESH_FLAVOR_GROUPS, every(300, "flavor-groups"), limits=(100, 120))
def refresh_flavor_groups(run: Run) -> dict[str, int | bool]:
    """Make flavor groups agree with flavors and rules."""
    result = refresh(actor=run.actor, request_id=run.request_id)
    return {
        "created": len(result.created),
        "updated": len(result.updated),
        "retired": len(result.retired),
        "removed": len(result.removed),
        "resized": len(result.resized),
        "has_changed": result.has_changed,
    }


@job(REFRESH_GROUP_CAPACITY, every(LOOK_SECONDS, "capacity"), limits=(570, 600))
def refresh_group_capacity(run: Run) -> dict[str, int]:
    """Compute the capacity of flavor groups in every zone where something changed.

    Zones that were computed just now wait for the minimum interval; so many changes cost one run.
    Before flavor groups were extracted for the first time there is nothing to compute.
    """
    chosen = settings.HEADROOM.capacity
    try:
        refreshed = refresh_capacity(
            min_age=timedelta(seconds=chosen.min_reconcile_interval_seconds)
        )
    except NotReady as not_ready:
        log.info("capacity_not_ready", message=not_ready.message)
        return {"not_ready": 1}
    return dict(Counter(zone.outcome for zone in refreshed))


@job(END_IN_FLIGHT, every(60, "in-flight"), limits=(45, 50), queue="soon")
def end_in_flight(_: Run) -> dict[str, int]:
    """End in-flight reservations that took too long, or whose VM landed, failed or went.

    Two runs at once do no harm: a row ends in one of them.
    """
    return {"over": after_vm_changes(), "expired": end_expired()}


@job(FOLLOW_SLOTS, every(30, "slots-of-agents"), limits=(50, 60), queue="soon")
def follow_slots(run: Run) -> dict[str, int]:
    """Ask agents to make the slots of their hosts, and to remove what left them; note what is."""
    asked = asdict(follow(actor=run.actor, request_id=run.request_id))
    return {**asked, "noted": agree_with_agents(), "given_back": give_back_left_rooms()}


@job(RECOUNT_ROOMS, every(10, "rooms"), limits=(100, 120), queue="soon")
def recount_rooms(_: Run) -> dict[str, int]:
    """Count the rooms anew that were counted from another source than the one in force."""
    return {"recounted": follow_source()}


@job(VERIFY_RESERVED, nightly(3, 20, "reserved"), limits=(840, 900), queue="long")
def verify_reserved(_: Run) -> dict[str, int]:
    """Repair what is reserved of network, disk I/O and GPUs where it is no sum of slots."""
    return dict(verify())


@job(PRUNE_DECISIONS, every(3600, "decisions"), limits=(840, 900), queue="long")
def prune_decisions(run: Run) -> dict[str, int]:
    """Forget scheduling decisions past their retention."""
    report = prune(now=run.now)
    return {"decisions": report.decisions, "listings": report.listings}


@job(CHECK_OVERSUBSCRIPTION, every(30, "oversubscription"), limits=(270, 300))
def check_oversubscription(run: Run) -> dict[str, int]:
    """Relieve hosts that promise more than they have; runs side by side wait for each other."""
    if not settings.HEADROOM.oversubscription.check:
        return {}
    report = guard(actor=run.actor, request_id=run.request_id)
    return {**report.outcomes, "moved": report.moved, "evicted": report.evicted}


@job(KEEP_HISTORY, every(300, "capacity-history"), limits=(270, 300))
def keep_history(run: Run) -> dict[str, int]:
    """Write the hour and the day of the capacity history that are missing."""
    return asdict(keep(now=run.now))
