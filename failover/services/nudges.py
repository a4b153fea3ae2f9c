"""Telling the worker that there is something to do now (style, 9)."""

from __future__ import annotations

from failover.models import FailoverZone
from journal.nudges import hand_to_worker, hint_worker


def run_soon() -> None:
    """Make the next run of every zone due and tell the worker; beat would come anyway."""
    FailoverZone.objects.filter(next_run_at__isnull=False).update(next_run_at=None)
    for task in ("failover.reconcile_periodic", "failover.validate_due"):
        hint_worker(task)


def start_rebalancing(zone: str, most_steps: int | None) -> None:
    """Let the worker plan a zone from scratch and move towards that plan.

    Raises:
        BrokerUnavailable: the broker does not take the task; nothing was started.
    """
    hand_to_worker("failover.rebalance_zone", [zone, most_steps])
