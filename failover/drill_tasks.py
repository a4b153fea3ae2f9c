"""Celery entry points of drills, evacuations and the coverage account (spec failover, 17.8)."""

from __future__ import annotations

from celery import shared_task

from failover.services.coverage import ACCOUNT_TASK, account_coverage
from failover.services.drills import DRILL_TASK, drill_zones
from failover.services.evacuation import plan_evacuations, settle_evacuations
from failover.services.rebalancing import rebalance_all, rebalance_now
from journal.actors import task_actor
from journal.clock import database_now
from journal.tracing import with_new_global_request_id

EVACUATE = "failover.evacuate"
REBALANCE = "failover.rebalance"
REBALANCE_ZONE = "failover.rebalance_zone"


@shared_task(name=DRILL_TASK, time_limit=1800, soft_time_limit=1740)
def drill_all_zones() -> dict[str, int]:
    """Drill every zone and store the reports."""
    with with_new_global_request_id() as request_id:
        run = drill_zones(request_id=request_id, now=database_now())
    return {"unprotected": sum(run.unprotected.values()), "failed": len(run.failed)}


@shared_task(name=ACCOUNT_TASK, time_limit=50, soft_time_limit=45)
def account_for_coverage() -> dict[str, int]:
    """Add the time since the last look to the coverage account; a run beside another skips."""
    with with_new_global_request_id():
        zones = account_coverage(now=database_now())
    if zones is None:
        return {"skipped": 1}
    return {"zones": len(zones), "uncovered": sum(zone.uncovered_vms for zone in zones)}


@shared_task(name=EVACUATE, time_limit=120, soft_time_limit=110)
def evacuate() -> dict[str, int]:
    """Plan for hosts that died, and end what arrived; running twice does no harm."""
    actor = task_actor(EVACUATE)
    with with_new_global_request_id() as request_id:
        now = database_now()
        settled = settle_evacuations(actor=actor, request_id=request_id, now=now)
        planned = plan_evacuations(actor=actor, request_id=request_id, now=now)
    return {**settled, "planned": sum(outcome.planned for outcome in planned)}


@shared_task(name=REBALANCE, time_limit=3600, soft_time_limit=3540)
def rebalance() -> dict[str, int]:
    """Compute shadow plans and carry out those that save enough; running twice does no harm."""
    with with_new_global_request_id() as request_id:
        return rebalance_all(actor=task_actor(REBALANCE), request_id=request_id, now=database_now())


@shared_task(name=REBALANCE_ZONE, time_limit=3600, soft_time_limit=3540)
def rebalance_one_zone(zone: str, most_steps: int | None = None) -> dict[str, object]:
    """Plan one zone from scratch and carry that out now, as an operator asked."""
    with with_new_global_request_id() as request_id:
        done = rebalance_now(
            zone,
            actor=task_actor(REBALANCE_ZONE),
            request_id=request_id,
            now=database_now(),
            most_steps=most_steps,
        )
    if done is None:
        return {"zone": zone, "worth": False}
    return {"zone": zone, "worth": True, "steps": done.steps, "done": done.done}
