"""Celery entry points of the journal: the sign of life, and forgetting what is old."""

from __future__ import annotations

from celery import shared_task

from journal.clock import database_now
from journal.health import BEAT
from journal.kept_sums import keep_sums
from journal.logins import forget_failed_logins
from journal.pruning import FORGET_AUDIT, prune_append_only, prune_logs, prune_over
from journal.services import queue_heartbeat, record_heartbeat
from journal.tracing import with_new_global_request_id

PRUNE = "journal.prune"
KEEP_SUMS = "journal.keep_sums"


@shared_task(name="journal.beat", time_limit=30, soft_time_limit=20)
def beat() -> None:
    """Record that beat sent a task and a worker ran it."""
    record_heartbeat(BEAT)


@shared_task(name="journal.beat_queue", time_limit=30, soft_time_limit=20)
def beat_queue(queue: str) -> None:
    """Record that a worker takes tasks of the queue in which this one waited."""
    record_heartbeat(queue_heartbeat(queue))


@shared_task(name=KEEP_SUMS, time_limit=120, soft_time_limit=100)
def keep_sums_of_metrics() -> int:
    """Sum up what scrapes tell of all rows."""
    return keep_sums()


@shared_task(name=PRUNE, time_limit=600, soft_time_limit=570)
def prune() -> dict[str, int]:
    """Forget entries of logs and audit past their retention, what is over, and failed logins."""
    with with_new_global_request_id():
        now = database_now()
        audit = prune_append_only(FORGET_AUDIT, now=now)
        logins = forget_failed_logins(now=now)
        return {
            **prune_logs(now=now), **prune_over(now=now), "audit": audit, "failed_logins": logins
        }  # fmt: skip
