"""Rows that tell of runs that free hosts (spec commitments, 25 item 9; style, 9)."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta

from django.db import transaction
from django.db.models import F

from commitments.metrics.slots import COMPACTION_RUNS
from commitments.models import CompactionOutcome, CompactionRun
from journal.actors import Actor
from journal.clock import database_now

KEPT = timedelta(days=90)


def begin_run(zone: str, *, now: datetime, actor: Actor, request_id: str) -> CompactionRun:
    """Write the row of a run that starts; the caller holds the lock of the zone's runs.

    Runs of the zone without an end died, since no other can be running.
    """
    with transaction.atomic(durable=True):
        runs = CompactionRun.objects.filter(zone=zone)
        runs.filter(finished_at__isnull=True).update(
            finished_at=now,
            outcome=CompactionOutcome.ABANDONED,
            message="the process died in the middle; the hosts it freed stay free",
        )
        runs.filter(started_at__lt=now - KEPT).delete()
        return CompactionRun.objects.create(
            zone=zone, started_at=now, actor=actor.name, request_id=request_id
        )


def note_release(run: CompactionRun, *, slots_moved: int) -> None:
    """Count a host that was freed, in the transaction that frees it."""
    CompactionRun.objects.filter(pk=run.pk).update(
        hosts_freed=F("hosts_freed") + 1, slots_moved=F("slots_moved") + slots_moved
    )


def finish_run(
    run: CompactionRun,
    outcome: CompactionOutcome,
    *,
    message: str = "",
    hosts_planned: int = 0,
    hosts_refused: int = 0,
    counts: Mapping[str, int] | None = None,
) -> CompactionRun:
    """Write how a run ended, and return it as it is stored."""
    CompactionRun.objects.filter(pk=run.pk).update(
        finished_at=database_now(),
        outcome=outcome,
        message=message,
        hosts_planned=hosts_planned,
        hosts_refused=hosts_refused,
        counts=dict(counts or {}),
    )
    COMPACTION_RUNS.labels(outcome=outcome.value).inc()
    run.refresh_from_db()
    return run
