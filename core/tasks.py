"""Jobs of the journal, which stands below the job runner: signs of life, and forgetting."""

from __future__ import annotations

from django.conf import settings

from core.doctor.findings import offered_checks, run_checks
from core.doctor.kept import keep_findings
from core.jobs import Run, every, job
from journal.health import BEAT
from journal.kept_sums import keep_sums
from journal.leases import held_lease
from journal.logins import forget_failed_logins
from journal.pruning import FORGET_AUDIT, prune_append_only, prune_logs, prune_over
from journal.services import queue_heartbeat, record_heartbeat

PRUNE = "journal.prune"
KEEP_SUMS = "journal.keep_sums"
DOCTOR = "core.doctor"
CHECK_SECONDS = 30.0


@job("journal.beat", every(15, "heartbeat"), limits=(20, 30), queue="soon")
def beat(_: Run) -> None:
    """Record that beat sent a task and a worker ran it."""
    record_heartbeat(BEAT)


@job(
    "journal.beat_queue",
    every(30, "heartbeat-steady", "steady", queue="steady"),
    every(30, "heartbeat-long", "long", queue="long"),
    limits=(20, 30),
)
def beat_queue(_: Run, queue: str) -> None:
    """Record that a worker takes tasks of the queue in which this one waited."""
    record_heartbeat(queue_heartbeat(queue))


@job(
    KEEP_SUMS,
    every(settings.HEADROOM.metrics.sums_every_seconds, "metrics-sums"),
    limits=(100, 120),
)
def keep_sums_of_metrics(_: Run) -> int:
    """Sum up what scrapes tell of all rows."""
    return keep_sums()


@job(PRUNE, every(600, "journal"), limits=(570, 600), queue="long")
def prune(run: Run) -> dict[str, int]:
    """Forget entries of logs and audit past their retention, what is over, and failed logins."""
    audit = prune_append_only(FORGET_AUDIT, now=run.now)
    logins = forget_failed_logins(now=run.now)
    forgotten = {**prune_logs(now=run.now), **prune_over(now=run.now)}
    return {**forgotten, "audit": audit, "failed_logins": logins}


@job(DOCTOR, every(300, "doctor"), limits=(560, 600))
def doctor(_: Run) -> dict[str, int]:
    """Run all checks, and keep what they find for the admin and for scrapes."""
    with held_lease(DOCTOR) as is_alone:
        if not is_alone:
            return {"skipped": 1}
        found = list(run_checks(offered_checks(), deadline_seconds=CHECK_SECONDS))
        return {"findings": keep_findings(found)}
