"""Background repair: place what waits, release what ended, zone by zone (spec commitments, 8).

The same planner and placer as the API's, each commitment for itself: what fits is held, what does
not is tried again with a growing delay.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

import structlog
from celery.exceptions import SoftTimeLimitExceeded
from django.conf import settings
from django.db import transaction
from django.db.models import Case, Q, QuerySet, When

from capacity.figures.group_capacity import ensure_totals
from capacity.groups.reading import load_group_definitions
from capacity.host_table import current_host_table
from capacity.locks import LockSpace, try_lock, zone_lock
from commitments.domain.admission import (
    AdmissionPlan,
    AdmissionSnapshot,
    CommitmentTarget,
    plan_admission,
)
from commitments.domain.state import (
    CommitmentFormatError,
)
from commitments.domain.statuses import FINAL_STATUSES, CommitmentStatus, ResourceType, Ruling
from commitments.metrics.slots import REPAIR_SET_ASIDE
from commitments.models import Commitment, CommitmentEvent, Condition
from commitments.selectors.outdated_slots import commitments_with_outdated_slots
from commitments.services.admission import plan_renewing, read_cores, read_slots, read_snapshot
from commitments.services.apply import Application, PlanSpoiled, apply_admission
from commitments.services.change import cores_keys, nudge
from commitments.services.commitment_rows import (
    WantedCommitment,
    is_rejected,
    make_target,
    spec_record,
    stored_state,
    summary_of,
)
from commitments.services.heirs import family_of, has_expired, others_than_heirs, with_inheritance
from commitments.services.nudges import nudge_misdated
from commitments.services.rollback import may_be_rejected, plan_rejectable
from core.jobs import Run, tried
from journal.actors import Actor
from journal.clock import database_now
from journal.errors import Busy, NotReady
from journal.outages import is_retryable
from journal.progress import Advance, unwatched
from journal.statistics import analyze_grown_tables

log = structlog.get_logger(__name__)

CHUNK_ROWS = 200
MANY_ROWS = 100
NEWS_FOR_USAGE = {Ruling.ACCEPTED.value, Ruling.RELEASED.value, Ruling.REJECTED.value}


@dataclass(frozen=True, slots=True, kw_only=True)
class RepairReport:
    """What a repair run did.

    Attributes:
        accepted: Commitments that hold all their capacity now.
        reserving: Commitments that wait for capacity.
        released: Commitments that ended and hold nothing any more.
        other: Commitments that need nothing (planned).
        rejected: Commitments that were answered no and hold what was accepted before.
        skipped: Zones that another run was working on, or whose lock was not free.
        invalid: Commitments that cannot be converted, or on which the repair failed.
    """

    accepted: int = 0
    reserving: int = 0
    released: int = 0
    other: int = 0
    rejected: int = 0
    skipped: tuple[str, ...] = ()
    invalid: int = 0

    @property
    def handled(self) -> int:
        """How many commitments were looked at."""
        held = self.accepted + self.reserving + self.rejected
        return held + self.released + self.other + self.invalid


@dataclass(slots=True, kw_only=True)
class _Run(Run):
    """One repair run, and what it did so far."""

    counts: dict[str, int] = field(default_factory=dict)
    skipped: list[str] = field(default_factory=list)

    def report(self) -> RepairReport:
        return RepairReport(
            accepted=self.counts.get(Ruling.ACCEPTED, 0),
            reserving=self.counts.get(Ruling.RESERVING, 0),
            released=self.counts.get(Ruling.RELEASED, 0),
            other=self.counts.get(Ruling.PLANNED, 0),
            rejected=self.counts.get(Ruling.REJECTED, 0),
            invalid=self.counts.get("invalid", 0),
            skipped=tuple(self.skipped),
        )


def count_due_commitments(now: datetime | None = None) -> int:
    """Return how many commitments are due for repair."""
    return Commitment.objects.filter(next_reconcile_at__lte=now or database_now()).count()


def repair_due_commitments(
    *,
    actor: Actor,
    request_id: str,
    now: datetime | None = None,
    limit: int | None = None,
    progress: Advance = unwatched,
) -> RepairReport:
    """Bring every due commitment in line with its row, zone by zone, in chunks.

    Each chunk is one transaction under the zone lock; a run that dies leaves whole chunks.

    Args:
        actor: Who repairs.
        now: The present; rows due until then are handled.
        limit: Most commitments to handle; all when left out.
        progress: Called with the number of commitments handled by each chunk.
    """
    moment = now or database_now()
    nudge_misdated(moment)
    run = _Run(actor=actor, request_id=request_id, now=moment)
    left = limit
    zones = (
        Commitment.objects.filter(next_reconcile_at__lte=moment)
        .order_by("zone")
        .values_list("zone", flat=True)
        .distinct()
    )
    try:
        load_group_definitions()
    except NotReady as not_ready:
        log.info("repair_not_ready", message=not_ready.message)
        return run.report()
    for zone in list(zones):
        while left is None or left > 0:
            size = CHUNK_ROWS if left is None else min(CHUNK_ROWS, left)
            handled = _repair_chunk(run, zone, size)
            if handled >= MANY_ROWS:
                analyze_grown_tables()
            progress(handled)
            left = None if left is None else left - handled
            if handled < size:
                break
    return run.report()


def _repair_chunk(run: _Run, zone: str, size: int) -> int:
    """Repair some due commitments of a zone; 0 when there is none or the zone is taken.

    Those that may be rejected are decided one by one: what a no plans must not be in the way of
    the next. So are those that hold slots of old sizes: each is renewed as a whole or not at all.
    Those that end are decided with those that take over from them, so that nobody comes between.
    """
    due = _due_rows(zone, size, run.now)
    due += family_of(due, run.now)
    lasting = [row for row in due if not has_expired(row, run.now)]
    alone = {row.pk for row in lasting if may_be_rejected(row)}
    alone |= commitments_with_outdated_slots([row.pk for row in lasting])
    handled = 0
    for row_ids in _parts(due, alone, run.now):
        handled += _repair_safely(run, zone, row_ids)
        if zone in run.skipped:
            break
    return handled


def _parts(due: Sequence[Commitment], alone: Collection[int], now: datetime) -> Iterator[list[int]]:
    """Yield what is repaired together, one after the other.

    Nothing that waits for room comes before a confirmed commitment, unless it takes over from one
    that ends.
    """
    together = [row for row in due if row.pk not in alone]
    lonely = sorted((row for row in due if row.pk in alone), key=lambda row: row.pk)
    promised = [row for row in lonely if row.state == CommitmentStatus.CONFIRMED]
    later = {row.pk for row in others_than_heirs(together, now)} if promised else set()
    yield from filter(None, [[row.pk for row in together if row.pk not in later]])
    yield from ([row.pk] for row in promised)
    yield from filter(None, [[row.pk for row in together if row.pk in later]])
    yield from ([row.pk] for row in lonely if row.state != CommitmentStatus.CONFIRMED)


def _repair_safely(run: _Run, zone: str, row_ids: Sequence[int]) -> int:
    """Repair rows in one transaction; when that fails, each in its own.

    So one bad row harms itself alone: it is logged, counted and looked at again much later. One
    that others write is no bad one: it stays due for the next run.

    Raises:
        SoftTimeLimitExceeded: the task's time is over, which is no row's fault; the next run goes
            on.
    """
    try:
        return _repair_some(run, zone, row_ids)
    except SoftTimeLimitExceeded:
        raise
    except Exception as error:  # whatever one row meets, the others are repaired
        if len(row_ids) == 1 and is_retryable(error):
            log.info("repair_row_busy", zone=zone, row_ids=list(row_ids), error=str(error))
            return 0
        log.exception("repair_failed", zone=zone, row_ids=list(row_ids))
    if len(row_ids) > 1:
        return sum(_repair_safely(run, zone, [row_id]) for row_id in row_ids)
    _postpone(row_ids[0], run)
    return 1


def _repair_some(run: _Run, zone: str, row_ids: Sequence[int]) -> int:
    def repaired() -> list[str]:
        # Transactions under a lease have written when they begin (they lock its row), so that what
        # they read of hosts is kept for nobody, and the next one would read all of them.
        current_host_table()
        _know_cores(zone, run.now)
        with transaction.atomic(durable=True):
            if not try_lock(LockSpace.TASK, f"commitments.repair:{zone}"):
                raise Busy(f"zone {zone} is being repaired by another run", zone=zone)
            zone_lock([zone])
            outcomes = _repair_rows(_still_due(row_ids, run.now), run)
            if NEWS_FOR_USAGE & set(outcomes):
                transaction.on_commit(lambda: nudge(needs_repair=False), robust=True)
        return outcomes

    try:
        outcomes = tried(
            repaired,
            again_after=lambda error: isinstance(error, PlanSpoiled),
            event="repair_plan_spoiled",
            zone=zone,
        )
    except (PlanSpoiled, Busy) as busy:
        log.info("repair_zone_busy", zone=zone, message=busy.message)
        run.skipped.append(zone)
        return 0
    for outcome in outcomes:
        run.counts[outcome] = run.counts.get(outcome, 0) + 1
    return len(outcomes)


def _postpone(row_id: int, run: _Run) -> None:
    """Look at a commitment that the repair failed on again after the longest delay."""
    REPAIR_SET_ASIDE.inc()
    run.counts["invalid"] = run.counts.get("invalid", 0) + 1
    Commitment.objects.filter(pk=row_id).update(
        next_reconcile_at=run.now + timedelta(seconds=settings.HEADROOM.retry.cap_seconds)
    )


def _know_cores(zone: str, now: datetime) -> None:
    due_cores = Commitment.objects.filter(
        zone=zone, next_reconcile_at__lte=now, resource_type=ResourceType.CORES
    )
    if due_cores.exists():
        ensure_totals(zone)


def _due_rows(zone: str, size: int, now: datetime) -> list[Commitment]:
    return list(_in_turn(Commitment.objects.filter(zone=zone), now)[:size])


def _still_due(row_ids: Sequence[int], now: datetime) -> list[Commitment]:
    return list(_in_turn(Commitment.objects.filter(pk__in=row_ids), now))


def _in_turn(rows: QuerySet[Commitment], now: datetime) -> QuerySet[Commitment]:
    """Return those that are due: what ends gives room back, then what is confirmed gets its own.

    A confirmed commitment that lost its host stands before all that only wait for room.
    """
    ends = Q(state__in=FINAL_STATUSES) | Q(end_time__lte=now)
    turn = Case(When(ends, then=0), When(state=CommitmentStatus.CONFIRMED, then=1), default=2)
    return rows.filter(next_reconcile_at__lte=now).order_by(turn, "next_reconcile_at", "pk")


def _repair_rows(rows: Sequence[Commitment], run: _Run) -> list[str]:
    wanted: list[tuple[Commitment, WantedCommitment]] = []
    invalid = 0
    for row in rows:
        try:
            wanted.append((row, wanted_as_stored(row)))
        except CommitmentFormatError as error:
            _set_aside(row, str(error), run)
            invalid += 1
    outcomes = ["invalid"] * invalid
    if wanted:
        outcomes += _apply(wanted, run, _way_to_plan([row for row, _ in wanted]))
    return outcomes


Planned = Sequence[tuple[Commitment, WantedCommitment]]
Plan = Callable[[AdmissionSnapshot, Planned, Sequence[CommitmentTarget], datetime], AdmissionPlan]


def _way_to_plan(rows: Sequence[Commitment]) -> Plan:
    if len(rows) == 1 and may_be_rejected(rows[0]):
        return _plan_rejectable
    if len(rows) == 1 and commitments_with_outdated_slots([rows[0].pk]):
        return _plan_renewing
    return _plan_together


def _plan_together(
    snapshot: AdmissionSnapshot, _: Planned, targets: Sequence[CommitmentTarget], now: datetime
) -> AdmissionPlan:
    return plan_admission(snapshot, targets, may_reject=False, now=now)


def _plan_rejectable(
    snapshot: AdmissionSnapshot,
    pairs: Planned,
    targets: Sequence[CommitmentTarget],
    now: datetime,
) -> AdmissionPlan:
    limited = replace(snapshot, max_slots=settings.HEADROOM.liquid.max_slots_per_commitment)
    return plan_rejectable(limited, pairs[0][0], targets[0], now=now)


def _plan_renewing(
    snapshot: AdmissionSnapshot, _: Planned, targets: Sequence[CommitmentTarget], now: datetime
) -> AdmissionPlan:
    return plan_renewing(snapshot, targets[0], now=now)


def _apply(pairs: Planned, run: _Run, plan_them: Plan) -> list[str]:
    """Plan commitments on what is stored now, and apply the plan."""
    now = run.now
    rows = [row for row, _ in pairs]
    slots = read_slots(rows)
    ended = [row for row in rows if has_expired(row, now)]
    targets = tuple(
        with_inheritance(make_target(item, row, slots.by_commitment, now), row, ended, now)
        for row, item in pairs
    )
    keys = cores_keys(targets) | {
        (str(row.accepted_spec["flavorGroupName"]), str(row.accepted_spec["availabilityZone"]))
        for row in rows
        if row.accepted_spec and row.accepted_spec.get("resourceType") == ResourceType.CORES
    }
    snapshot = read_snapshot(
        rooms=slots.rooms,
        cores=read_cores(keys, outside=[row.commitment_uuid for row in rows], now=now),
        targets=targets,
    )
    plan = plan_them(snapshot, pairs, targets, now)
    apply_admission(
        Application(
            plan=plan,
            wanted=tuple(item for _, item in pairs),
            rows={row.commitment_uuid: row for row in rows},
            rooms=slots.rooms,
            now=now,
            actor=run.actor,
            request_id=run.request_id,
        )
    )
    return [decision.outcome.value for decision in plan.decisions]


def wanted_as_stored(row: Commitment) -> WantedCommitment:
    """Return what a stored commitment asks for.

    Raises:
        CommitmentFormatError: the row does not describe a commitment that we know.
    """
    return WantedCommitment(
        commitment_uuid=row.commitment_uuid, state=stored_state(row), confirm_by=row.confirm_by
    )


def _set_aside(row: Commitment, problem: str, run: _Run) -> None:
    """Reject a row that cannot be processed, and look at it again after the longest delay.

    Its slots stay: a row that nobody understands must not release what was promised.
    """
    log.error("commitment_invalid", commitment=row.commitment_uuid, problem=problem)
    is_news = not (is_rejected(row) and row.ready_message == problem)
    row.next_reconcile_at = run.now + timedelta(seconds=settings.HEADROOM.retry.cap_seconds)
    if is_news:
        row.ready_status, row.ready_reason, row.ready_message = False, Condition.REJECTED, problem
        row.ready_observed_generation, row.ready_changed_at = row.generation, run.now
        row.status_summary = summary_of(row, run.now)
        CommitmentEvent.objects.create(
            commitment_uuid=row.commitment_uuid,
            actor=run.actor.name,
            request_id=run.request_id,
            action="commitment_rejected",
            after=spec_record(row),
            reason=problem,
        )
    row.save()
