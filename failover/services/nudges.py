"""Telling the worker that there is something to do now (style, 9)."""

from __future__ import annotations

from celery import current_app
from kombu.exceptions import OperationalError

from failover.models import FailoverZone
from journal.outages import BrokerUnavailable


def run_soon() -> None:
    """Make the next run of every zone due and tell the worker; beat would come anyway."""
    FailoverZone.objects.filter(next_run_at__isnull=False).update(next_run_at=None)
    for task in ("failover.reconcile_periodic", "failover.validate_due"):
        current_app.send_task(task, retry=False)


def start_rebalancing(zone: str, most_steps: int | None) -> None:
    """Let the worker plan a zone from scratch and move towards that plan.

    Raises:
        BrokerUnavailable: the broker does not take the task; nothing was started.
    """
    try:
        current_app.send_task("failover.rebalance_zone", args=[zone, most_steps], retry=False)
    except OperationalError as error:
        message = "no task can be started: the broker does not answer"
        raise BrokerUnavailable(message) from error
