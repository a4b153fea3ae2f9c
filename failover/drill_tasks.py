"""Celery entry points of drills, evacuations and the coverage account (spec failover, 17.8)."""

from __future__ import annotations

from core.jobs import Run, every, job, nightly
from failover.services.coverage import ACCOUNT_TASK, account_coverage
from failover.services.drills import DRILL_TASK, drill_zones
from failover.services.evacuation import plan_evacuations, settle_evacuations
from failover.services.rebalancing import rebalance_all, rebalance_now

EVACUATE = "failover.evacuate"
REBALANCE = "failover.rebalance"
REBALANCE_ZONE = "failover.rebalance_zone"


@job(
    DRILL_TASK,
    nightly(2, 17, "drills"),
    limits=(1740, 1800),
    queue="long",
)
def drill_all_zones(run: Run) -> dict[str, int]:
    """Drill every zone and store the reports."""
    done = drill_zones(request_id=run.request_id, now=run.now)
    return {"unprotected": sum(done.unprotected.values()), "failed": len(done.failed)}


@job(ACCOUNT_TASK, every(60, "coverage"), limits=(45, 50), queue="soon")
def account_for_coverage(run: Run) -> dict[str, int]:
    """Add the time since the last look to the coverage account; a run beside another skips."""
    zones = account_coverage(now=run.now)
    if zones is None:
        return {"skipped": 1}
    return {"zones": len(zones), "uncovered": sum(zone.uncovered_vms for zone in zones)}


@job(EVACUATE, every(10, "evacuations"), limits=(110, 120), queue="soon")
def evacuate(run: Run) -> dict[str, int]:
    """Plan for hosts that died, and end what arrived; running twice does no harm."""
    settled = settle_evacuations(actor=run.actor, request_id=run.request_id, now=run.now)
    planned = plan_evacuations(actor=run.actor, request_id=run.request_id, now=run.now)
    return {**settled, "planned": sum(outcome.planned for outcome in planned)}


@job(
    REBALANCE,
    nightly(3, 17, "rebalancing"),
    limits=(3540, 3600),
    queue="long",
)
def rebalance(run: Run) -> dict[str, int]:
    """Compute shadow plans and carry out those that save enough; running twice does no harm."""
    return rebalance_all(actor=run.actor, request_id=run.request_id, now=run.now)


@job(REBALANCE_ZONE, limits=(3540, 3600), queue="long")
def rebalance_one_zone(run: Run, zone: str, most_steps: int | None = None) -> dict[str, object]:
    """Plan one zone from scratch and carry that out now, as an operator asked."""
    done = rebalance_now(
        zone,
        actor=run.actor,
        request_id=run.request_id,
        now=run.now,
        most_steps=most_steps,
    )
    if done is None:
        return {"zone": zone, "worth": False}
    return {"zone": zone, "worth": True, "steps": done.steps, "done": done.done}
