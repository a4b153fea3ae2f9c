"""Rows that tell of the syncer's runs (spec commitments, 16.2, 16.7)."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from django.db import transaction

from commitments.models import SyncOutcome, SyncRun
from journal.actors import Actor
from journal.clock import database_now
from journal.errors import HeadroomError, InvalidInput
from journal.services import Change, record_changes

SOURCE = "limes"
KNOWN = "known"
KNOWN_BY_ZONE = "known_by_zone"
PROJECTS = "projects"
NEVER_LISTED = "never_listed"


class SyncProblem(HeadroomError):  # noqa: N818 - why a run is not a success
    """What a run could not do; the code is that of its row."""

    code = "sync_incomplete"


class NothingUnderstood(SyncProblem):
    """Commitments for us are listed, and none is understood."""

    code = "nothing_understood"


def begin_run(now: datetime, *, source: str = SOURCE, is_alone: bool = True) -> SyncRun:
    """Write the row of a run that starts.

    Args:
        source: What runs.
        is_alone: Whether the caller holds the lock of its source: then runs that have no end yet
            died, since no other may be running.
    """
    with transaction.atomic(durable=True):
        if is_alone:
            SyncRun.objects.filter(source=source, finished_at__isnull=True).update(
                finished_at=now,
                outcome=SyncOutcome.ABANDONED,
                error_code="abandoned",
                message="the process died in the middle; the next run did the work again",
            )
        return SyncRun.objects.create(source=source, started_at=now)


def finish_run(
    run: SyncRun,
    *,
    outcome: SyncOutcome,
    counts: Mapping[str, object],
    error_code: str = "",
    message: str = "",
) -> None:
    """Write how a run ended."""
    run.finished_at = database_now()
    run.outcome, run.counts = outcome.value, dict(counts)
    run.error_code, run.message = error_code, message
    run.save(update_fields=["finished_at", "outcome", "counts", "error_code", "message"])


def last_success_at(source: str) -> datetime | None:
    """Return when the last run of a source that was a success began."""
    runs = SyncRun.objects.filter(source=source, outcome=SyncOutcome.SUCCESS)
    return runs.order_by("-id").values_list("started_at", flat=True).first()


def last_good_run() -> SyncRun | None:
    """Return the last run that was believed: a success, or one whose shrink was accepted."""
    runs = SyncRun.objects.filter(source=SOURCE)
    good = runs.filter(outcome=SyncOutcome.SUCCESS) | runs.exclude(shrink_accepted_by="")
    return good.order_by("-id").first()


def why_not_acceptable(run: SyncRun) -> str:
    """Return why the shrink that a run met cannot be accepted, empty when it can."""
    if run.source != SOURCE or run.outcome != SyncOutcome.GUARDED:
        return f"run {run.pk} was not stopped by the guard"
    good = last_good_run()
    if good is not None and good.pk == run.pk:
        return f"the shrink of run {run.pk} is accepted already"
    if good is not None and good.pk > run.pk:
        return f"run {good.pk}, later than run {run.pk}, was good already"
    return ""


def accept_shrink(run_id: int, *, actor: Actor, request_id: str) -> SyncRun:
    """Say that a guarded run was right: so many commitments, or projects, really went.

    Later runs are compared with this one, so that the missing ones are counted and end in time.

    Raises:
        InvalidInput: the run was not guarded, or a later run was good.
    """
    with transaction.atomic():
        run = SyncRun.objects.select_for_update().get(pk=run_id)
        problem = why_not_acceptable(run)
        if problem:
            raise InvalidInput(problem, code="shrink_not_acceptable")
        run.shrink_accepted_by, run.shrink_accepted_at = actor.name, database_now()
        run.save(update_fields=["shrink_accepted_by", "shrink_accepted_at"])
        record_changes(
            [
                Change(
                    action="sync_shrink_accepted",
                    object_type="SyncRun",
                    object_id=str(run.pk),
                    after=run.counts,
                    reason=run.message,
                )
            ],
            actor=actor,
            request_id=request_id,
        )
    return run
