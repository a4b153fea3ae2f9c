"""Celery entry points of the feed (docs/feed.md) and of agents (docs/hosts.md)."""

from __future__ import annotations

from django.conf import settings

from core.jobs import Run, every, job
from hosts.agents.leases import sweep
from hosts.agents.pruning import expire_workloads, prune_agents
from hosts.agents.rollouts import look_at_rollout
from hosts.feed.hints import CHANGES_TASK
from hosts.feed.jobs import FULL_TASK, configured_cloud, follow_changes, full_pass
from hosts.feed.lists import PassKind
from hosts.services.evictions import look_at_evictions, prune_evictions
from hosts.services.leaving import move_vms
from hosts.services.lifecycles import has_aborts, prune_lifecycles, run_lifecycles
from hosts.services.overcommit_rules import RECONCILE, reconcile_overcommit

CHOSEN = settings.HEADROOM.feed
BEATS = (
    [
        every(getattr(CHOSEN, f"{kind}_interval_seconds"), f"feed-{kind}", kind.value)
        for kind in PassKind
        if kind is not PassKind.CHANGES
    ]
    if CHOSEN.cloud
    else []
)
CHANGES_BEATS = [every(CHOSEN.changes_interval_seconds, "feed-changes")] if CHOSEN.cloud else []


@job(CHANGES_TASK, *CHANGES_BEATS, limits=(110, 120), queue="soon")
def feed_changes(run: Run) -> dict[str, object]:
    """Look at the VMs that changed since the last look."""
    return follow_changes(run)


@job(FULL_TASK, *BEATS, limits=(1700, 1800), queue="long")
def feed_pass(run: Run, kind: str) -> dict[str, object]:
    """Read all that the cloud lists of a kind."""
    return full_pass(run, PassKind(kind))


@job("hosts.sweep_leases", every(5, "agents-leases"), limits=(50, 60), queue="soon")
def sweep_leases(run: Run) -> dict[str, int]:
    """Notice agents that are silent."""
    return sweep(actor=run.actor, request_id=run.request_id)


@job("hosts.expire_reservations", every(20, "agents-expiry"), limits=(50, 60), queue="soon")
def expire_reservations(run: Run) -> dict[str, int]:
    """Have agents remove what is past its end."""
    return {"expired": expire_workloads(actor=run.actor, request_id=run.request_id)}


@job(RECONCILE, every(300, "overcommit"), limits=(110, 120), queue="soon")
def follow_overcommit_rules(run: Run) -> dict[str, int]:
    """Let hosts promise what rules say of their traits."""
    return {"changed": reconcile_overcommit(actor=run.actor, request_id=run.request_id)}


@job("hosts.run_evictions", every(10, "evictions"), limits=(50, 60), queue="soon")
def run_evictions(run: Run) -> dict[str, int]:
    """Have VMs leave hosts that are to become empty, where that is set; count what is left."""
    if CHOSEN.cloud and CHOSEN.moves_vms:
        cloud = configured_cloud(CHOSEN.cloud)
        move_vms(cloud, actor=run.actor, request_id=run.request_id)
    return look_at_evictions(actor=run.actor, request_id=run.request_id)


@job("hosts.run_lifecycles", every(10, "lifecycles"), limits=(110, 120), queue="soon")
def bring_in_and_out(run: Run) -> dict[str, int]:
    """Do what comes next of hosts that are brought into service or out of it, where that is set."""
    if not CHOSEN.cloud or not (CHOSEN.onboards_hosts or CHOSEN.offboards_hosts or has_aborts()):
        return {}
    return run_lifecycles(
        configured_cloud(CHOSEN.cloud),
        actor=run.actor,
        request_id=run.request_id,
        brings_in=CHOSEN.onboards_hosts,
        takes_out=CHOSEN.offboards_hosts,
    )


@job("hosts.roll_agents", every(60, "agents-rollout"), limits=(50, 60), queue="soon")
def roll_agents(run: Run) -> dict[str, int]:
    """Have the next wave of hosts run the version of the agent that is rolled out."""
    return look_at_rollout(actor=run.actor, request_id=run.request_id)


@job("hosts.prune_agents", every(600, "agents-prune"), limits=(50, 60), queue="long")
def prune(_: Run) -> dict[str, int]:
    """Forget old tombstones, requests that were seen, and what is over of hosts."""
    return {
        **prune_agents(),
        "evictions": prune_evictions(),
        "lifecycles": prune_lifecycles(),
    }
