"""Periodic sign of life of beat and worker together."""

from __future__ import annotations

from celery import shared_task

from journal.services import record_heartbeat


@shared_task(name="journal.beat", time_limit=30, soft_time_limit=20)
def beat() -> None:
    """Record that beat sent a task and a worker ran it."""
    record_heartbeat("beat")
