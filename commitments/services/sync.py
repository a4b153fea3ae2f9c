"""The syncer: what Limes says is repaired here (spec commitments, 16; spec liquid, 15).

It writes commitments only. Whether capacity is held, moved or given back is decided by the repair
that a changed row calls for. A run that is killed leaves whole chunks of repaired rows; counting
what is missing, and ending it, is one last transaction.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

import structlog
from django.conf import settings
from django.db import DatabaseError, transaction
from django.db.models import Max

from capacity.models import FlavorGroupSnapshot
from commitments.clients.cloud import Cloud, CloudUnavailable
from commitments.domain.sync_guard import SyncRules, shrank_too_far, vanished_zones
from commitments.metrics import sync as metrics
from commitments.models import Commitment, CommitmentEvent, SyncOutcome, SyncRun
from commitments.selectors.live import live_commitments
from commitments.services.intake import (
    Intake,
    SeenRows,
    changed_commitments,
    ram_units_of_known_groups,
    take_in_commitments,
)
from commitments.services.sync_missing import (
    MissingResult,
    live_rows,
    mark_listed,
    never_listed,
    settle_missing,
)
from commitments.services.sync_reading import (
    Fetched,
    Listed,
    check_fetched,
    fetch,
    unread_projects,
)
from commitments.services.sync_runs import (
    KNOWN,
    KNOWN_BY_ZONE,
    NEVER_LISTED,
    PROJECTS,
    SyncProblem,
    begin_run,
    finish_run,
    last_good_run,
)
from core.chunks import in_chunks
from core.jobs import Run, tried
from hosts.models import Host
from journal.actors import Actor
from journal.clock import database_now
from journal.errors import Busy, NotReady
from journal.leases import held_lease
from journal.tracing import current_global_request_id

log = structlog.get_logger(__name__)

STEP_RETRIED = "sync_step_retried"

TASK = "commitments.sync"
CHUNK_ROWS = 500
ALREADY_RUNNING = "already_running"
GROUPS_MISSING = "flavor_groups_missing"
"""Flavor groups were never looked for: an error, where groups that are not ready are none (4.6)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncReport:
    """What a run did, or would do.

    Attributes:
        outcome: How it ended; empty when another one was running.
        error_code: Why it is not a success.
        message: The same, for a person.
        counts: What it counted.
    """

    outcome: str
    error_code: str = ""
    message: str = ""
    counts: Mapping[str, object] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True)
class _Run(Run):
    counts: dict[str, object] = field(default_factory=dict)
    row: SyncRun | None = None
    is_settled: bool = False

    @property
    def is_dry(self) -> bool:
        return self.row is None

    def add(self, name: str, more: int) -> None:
        before = self.counts.get(name, 0)
        self.counts[name] = (before if isinstance(before, int) else 0) + more


def configured_rules() -> SyncRules:
    """Return the thresholds of ``HEADROOM_SYNC__...``."""
    sync = settings.HEADROOM.sync
    return SyncRules(
        stale_threshold=sync.stale_threshold,
        stale_grace=timedelta(seconds=sync.stale_grace_seconds),
        unlisted_grace=timedelta(seconds=sync.unlisted_grace_seconds),
        max_drop_ratio=sync.max_drop_ratio,
        max_drop_count=sync.max_drop_count,
        expired_retention=timedelta(seconds=sync.expired_retention_seconds),
    )


def sync_commitments(
    cloud: Cloud,
    *,
    actor: Actor,
    request_id: str = "",
    now: datetime | None = None,
    dry_run: bool = False,
) -> SyncReport:
    """Bring commitments in line with what Limes lists.

    One at a time; a second one says so and does nothing. Holds a session lock while it asks
    Keystone and Limes, and zone and row locks only while it writes.

    Args:
        cloud: Keystone and Limes.
        actor: Who syncs.
        request_id: Correlation id; that of the context when left out.
        dry_run: Find out what would change, and write nothing.
    """
    run = _Run(
        actor=actor,
        request_id=request_id or current_global_request_id(),
        now=now or database_now(),
    )
    with held_lease(TASK) as is_ours:
        if not is_ours:
            log.info("sync_already_running")
            return SyncReport(outcome="", error_code=ALREADY_RUNNING, message="another run is on")
        if not dry_run:
            run.row = begin_run(run.now)
        return _observed(run, cloud)


def _observed(run: _Run, cloud: Cloud) -> SyncReport:
    """Run, and tell how it went in the run's row, the log and the metrics."""
    started = time.monotonic()
    report = SyncReport(outcome=SyncOutcome.FAILED, error_code="internal", message="it failed")
    try:
        report = _tried(run, cloud)
    finally:
        if run.row is not None:
            if not run.is_settled:
                _finish(run, report)
            metrics.DURATION_SECONDS.observe(time.monotonic() - started)
            metrics.RUNS.labels(outcome=report.outcome).inc()
            if report.error_code and report.outcome != SyncOutcome.NOT_READY:
                metrics.ERRORS.inc()
                log.error("sync_failed", code=report.error_code, message=report.message)
            else:
                log.info("sync_finished", outcome=report.outcome, counts=run.counts)
    return report


def _finish(run: _Run, report: SyncReport) -> None:
    if run.row is not None:
        finish_run(
            run.row,
            outcome=SyncOutcome(report.outcome),
            counts=run.counts,
            error_code=report.error_code,
            message=report.message,
        )


def _tried(run: _Run, cloud: Cloud) -> SyncReport:
    try:
        return _sync(run, cloud)
    except NotReady as not_ready:
        is_missing = not FlavorGroupSnapshot.objects.exists()
        return SyncReport(
            outcome=SyncOutcome.FAILED if is_missing else SyncOutcome.NOT_READY,
            error_code=GROUPS_MISSING if is_missing else not_ready.code,
            message=not_ready.message,
            counts=run.counts,
        )
    except (CloudUnavailable, SyncProblem, Busy) as problem:
        return SyncReport(
            outcome=SyncOutcome.FAILED,
            error_code=problem.code,
            message=problem.message,
            counts=run.counts,
        )


def _sync(run: _Run, cloud: Cloud) -> SyncReport:
    units = ram_units_of_known_groups()
    seen = _see_rows()
    fetched = fetch(cloud, units)
    _tell_what_was_read(run, fetched)
    check_fetched(fetched, seen)
    _repair(run, list(fetched.listed.values()), seen)
    if not run.is_dry:
        mark_listed(fetched.known, run.now)
    unheard = never_listed(fetched.known, seen, rules=configured_rules(), now=run.now)
    run.counts[NEVER_LISTED] = len(unheard)
    problem = _why_missing_is_not_judged(run, fetched, len(unheard))
    if problem is not None:
        unmatched = sum(
            row.commitment_uuid not in fetched.known for row in live_rows(seen, run.now)
        )
        run.counts["missing"] = unmatched
        is_guarded = problem.code != SyncProblem.code
        return SyncReport(
            outcome=SyncOutcome.GUARDED if is_guarded else SyncOutcome.INCOMPLETE,
            error_code=problem.code,
            message=problem.message,
            counts=run.counts,
        )
    return _settle(run, fetched, seen, unheard)


def _see_rows() -> SeenRows:
    newest = CommitmentEvent.objects.aggregate(newest=Max("pk"))["newest"]
    rows = Commitment.objects.order_by().values_list("commitment_uuid", "generation")
    return SeenRows(generations=dict(rows), last_event_id=newest or 0)


def _tell_what_was_read(run: _Run, fetched: Fetched) -> None:
    run.counts |= fetched.counts
    if run.is_dry:
        return
    for reason, count in fetched.skipped.items():
        metrics.SKIPPED.labels(reason=reason).inc(count)


def _repair(run: _Run, listed: Listed, seen: SeenRows) -> None:
    """Take in what differs, chunk by chunk; each is one transaction."""
    changed = changed_commitments(listed)
    changed.sort(key=lambda item: item[0].state.commitment_uuid)
    run.counts |= {
        "created": 0,
        "updated": 0,
        "described": 0,
        "unchanged": len(listed) - len(changed),
    }
    for part in in_chunks(changed, CHUNK_ROWS):
        _repair_chunk(run, part, seen)


def _repair_chunk(run: _Run, part: Listed, seen: SeenRows) -> None:
    intake = Intake(actor=run.actor, request_id=run.request_id, now=run.now, seen=seen)

    def take() -> None:
        with transaction.atomic(durable=True):
            result = take_in_commitments(part, intake)
            if run.is_dry:
                transaction.set_rollback(True)
        run.add("created", result.created)
        run.add("updated", result.updated)
        run.add("described", result.described)
        run.add("unchanged", result.unchanged)
        for _, reason, _ in result.skipped:
            run.add(f"left_{reason}", 1)
        if not run.is_dry:
            metrics.CREATES.inc(result.created)
            metrics.UPDATES.inc(result.updated)

    try:
        tried(take, event=STEP_RETRIED)
    except (Busy, DatabaseError) as error:
        if len(part) == 1:
            log.exception("commitment_not_synced", commitment=part[0][0].state.commitment_uuid)
            run.add("failed", 1)
            return
        log.warning("sync_chunk_divided", rows=len(part), error=type(error).__name__)
        middle = len(part) // 2
        for half in (part[:middle], part[middle:]):
            _repair_chunk(run, half, seen)


def _why_missing_is_not_judged(run: _Run, fetched: Fetched, unheard: int) -> SyncProblem | None:
    """Return why this run may not say that something is gone, or None when it may.

    Commitments that were never listed would end at once, so they are part of what is expected,
    but for those that an operator accepted to be gone with the last good run.
    """
    if not fetched.is_complete:
        return SyncProblem(unread_projects(fetched))
    rules = configured_rules()
    good = last_good_run()
    counts = good.counts if good is not None else {}
    accepted = counts.get(NEVER_LISTED, 0) if good is not None and good.shrink_accepted_by else 0
    listed = int(counts.get(KNOWN, live_commitments(run.now).count() - unheard))
    before, known = listed + max(0, unheard - int(accepted)), len(fetched.known)
    if shrank_too_far(known=known, before=before, rules=rules):
        message = (
            f"Limes lists {known} commitments, {listed} in the last good run, "
            f"and never listed {unheard} of ours"
        )
        return SyncProblem(message, code="commitments_shrank")
    projects = int(counts.get(PROJECTS, 0))
    if shrank_too_far(known=fetched.projects, before=projects, rules=rules):
        message = f"Keystone lists {fetched.projects} projects, {projects} in the last good run"
        return SyncProblem(message, code="projects_shrank")
    return _why_a_zone_is_not_judged(counts.get(KNOWN_BY_ZONE, {}), fetched, run.now)


def _why_a_zone_is_not_judged(
    before: Mapping[str, int], fetched: Fetched, now: datetime
) -> SyncProblem | None:
    """Return that zones with hosts and live commitments are not listed at all, if there are any."""
    vanished = vanished_zones(before=before, known=fetched.zones)
    if not vanished:
        return None
    zones = Host.objects.filter(zone__in=vanished).order_by().values_list("zone", flat=True)
    held = live_commitments(now).filter(zone__in=zones.distinct())
    missing = {
        zone
        for zone, uuid in held.values_list("zone", "commitment_uuid")
        if uuid not in fetched.known
    }
    if not missing:
        return None
    lines = [
        f"Limes lists no commitment of {zone}, {before[zone]} in the last good run"
        for zone in sorted(missing)
    ]
    return SyncProblem("; ".join(lines), code="zone_vanished")


def _settle(run: _Run, fetched: Fetched, seen: SeenRows, unheard: Collection[str]) -> SyncReport:
    """Judge what is missing and end the run, in one transaction."""
    rules = configured_rules()
    result = MissingResult()

    def settle() -> None:
        nonlocal result
        with transaction.atomic(durable=True):
            result = settle_missing(
                fetched.known,
                seen,
                rules=rules,
                now=run.now,
                actor=run.actor,
                request_id=run.request_id,
                unheard=unheard,
            )
            run.counts |= {
                "missing": result.missed,
                "ended": result.ended,
                "deleted": result.deleted,
            }
            _finish(run, report)
            if run.is_dry:
                transaction.set_rollback(True)

    failed = run.counts.get("failed", 0)
    report = SyncReport(outcome=SyncOutcome.SUCCESS, counts=run.counts)
    if failed:
        report = SyncReport(
            outcome=SyncOutcome.SUCCESS,
            error_code="rows_failed",
            message=f"{failed} commitments could not be written; the log has the causes",
            counts=run.counts,
        )
    tried(settle, event=STEP_RETRIED)
    run.is_settled = True
    if not run.is_dry:
        metrics.DELETES.inc(result.deleted)
    return report


def configured_cloud() -> Cloud:
    """Return Keystone and Limes as the settings name them.

    Raises:
        SyncProblem: the settings have no login.
    """
    keystone = settings.HEADROOM.keystone
    if not keystone.is_complete:
        raise SyncProblem(
            "HEADROOM_KEYSTONE__... has no login to read commitments with",
            code="sync_not_configured",
        )
    # The OpenStack libraries take half a second to load: only who syncs waits.
    from commitments.clients.http_cloud import HTTPCloud  # noqa: PLC0415

    return HTTPCloud(keystone, settings.HEADROOM.sync)
