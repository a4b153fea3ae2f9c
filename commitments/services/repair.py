"""Background repair: place what waits, release what ended, zone by zone (spec commitments, 8).

The same planner and placer as the API's, each commitment for itself: what fits is held, what does
not is tried again with a growing delay.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

import structlog
from django.conf import settings
from django.db import transaction
from django.utils import timezone

from capacity.locks import LockSpace, try_lock, zone_lock
from capacity.selectors.groups import load_group_definitions
from capacity.services.group_capacity import ensure_totals
from commitments.domain.admission import Outcome, plan_admission
from commitments.domain.state import (
    CommitmentFormatError,
    CommitmentRecord,
    from_committed_resource,
)
from commitments.models import Commitment, Condition, ResourceType
from commitments.services.admission import read_cores, read_slots, read_snapshot
from commitments.services.apply import Application, PlanSpoiled, apply_admission
from commitments.services.change import cores_keys
from commitments.services.rows import WantedCommitment, make_target
from journal.actors import Actor
from journal.errors import Busy, NotReady

log = structlog.get_logger(__name__)

CHUNK_ROWS = 200
ATTEMPTS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class RepairReport:
    """What a repair run did.

    Attributes:
        accepted: Commitments that hold all their capacity now.
        reserving: Commitments that wait for capacity.
        released: Commitments that ended and hold nothing any more.
        other: Commitments that need nothing (planned).
        skipped: Zones that another run was working on, or whose lock was not free.
        invalid: Commitments that cannot be converted.
    """

    accepted: int = 0
    reserving: int = 0
    released: int = 0
    other: int = 0
    skipped: tuple[str, ...] = ()
    invalid: int = 0

    @property
    def handled(self) -> int:
        """How many commitments were looked at."""
        return self.accepted + self.reserving + self.released + self.other + self.invalid


@dataclass(slots=True, kw_only=True)
class _Run:
    """One repair run: who, when, and what it did so far."""

    actor: Actor
    request_id: str
    now: datetime
    counts: dict[str, int] = field(default_factory=dict)
    skipped: list[str] = field(default_factory=list)

    def report(self) -> RepairReport:
        return RepairReport(
            accepted=self.counts.get(Outcome.ACCEPTED, 0),
            reserving=self.counts.get(Outcome.RESERVING, 0),
            released=self.counts.get(Outcome.RELEASED, 0),
            other=self.counts.get(Outcome.PLANNED, 0),
            invalid=self.counts.get("invalid", 0),
            skipped=tuple(self.skipped),
        )


def count_due_commitments(now: datetime | None = None) -> int:
    """Return how many commitments are due for repair."""
    return Commitment.objects.filter(next_reconcile_at__lte=now or timezone.now()).count()


def repair_due_commitments(
    *,
    actor: Actor,
    request_id: str,
    now: datetime | None = None,
    limit: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> RepairReport:
    """Bring every due commitment in line with its row, zone by zone, in chunks.

    Each chunk is one transaction under the zone lock; a run that dies leaves whole chunks.

    Args:
        actor: Who repairs.
        request_id: Correlation id of the run.
        now: The present; rows due until then are handled.
        limit: Most commitments to handle; all when left out.
        progress: Called with the number of commitments handled by each chunk.
    """
    moment = now or timezone.now()
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
            if progress is not None and handled:
                progress(handled)
            left = None if left is None else left - handled
            if handled < size:
                break
    return run.report()


def _repair_chunk(run: _Run, zone: str, size: int) -> int:
    """Repair some due commitments of a zone; 0 when there is none or the zone is taken."""
    for attempt in range(1, ATTEMPTS + 1):
        try:
            _know_cores(zone, run.now)
            with transaction.atomic(durable=True):
                if not try_lock(LockSpace.TASK, f"commitments.repair:{zone}"):
                    run.skipped.append(zone)
                    return 0
                zone_lock([zone])
                outcomes = _repair_rows(_due_rows(zone, size, run.now), run)
        except PlanSpoiled as spoiled:
            log.info("repair_plan_spoiled", zone=zone, attempt=attempt, **spoiled.facts)
            continue
        except Busy as busy:
            log.info("repair_zone_busy", zone=zone, message=busy.message)
            break
        for outcome in outcomes:
            run.counts[outcome] = run.counts.get(outcome, 0) + 1
        return len(outcomes)
    run.skipped.append(zone)
    return 0


def _know_cores(zone: str, now: datetime) -> None:
    due_cores = Commitment.objects.filter(
        zone=zone, next_reconcile_at__lte=now, resource_type=ResourceType.CORES
    )
    if due_cores.exists():
        ensure_totals(zone)


def _due_rows(zone: str, size: int, now: datetime) -> list[Commitment]:
    return list(
        Commitment.objects.filter(zone=zone, next_reconcile_at__lte=now).order_by(
            "next_reconcile_at", "pk"
        )[:size]
    )


def _repair_rows(rows: Sequence[Commitment], run: _Run) -> list[str]:
    now = run.now
    wanted: list[WantedCommitment] = []
    valid: list[Commitment] = []
    invalid = 0
    for row in rows:
        try:
            wanted.append(wanted_as_stored(row))
        except CommitmentFormatError as error:
            _set_aside(row, str(error), now)
            invalid += 1
        else:
            valid.append(row)
    if not valid:
        return ["invalid"] * invalid
    slots = read_slots(valid)
    targets = tuple(
        make_target(item, row, slots.by_commitment, now)
        for item, row in zip(wanted, valid, strict=True)
    )
    uuids = [item.commitment_uuid for item in wanted]
    snapshot = read_snapshot(
        rooms=slots.rooms,
        cores=read_cores(cores_keys(targets), outside=uuids, now=now),
        include_retired_groups=True,
    )
    plan = plan_admission(snapshot, targets, may_reject=False, now=now)
    apply_admission(
        Application(
            plan=plan,
            wanted=tuple(wanted),
            rows={row.commitment_uuid: row for row in valid},
            rooms=slots.rooms,
            now=now,
            actor=run.actor,
            request_id=run.request_id,
        )
    )
    return [decision.outcome.value for decision in plan.decisions] + ["invalid"] * invalid


def wanted_as_stored(row: Commitment) -> WantedCommitment:
    """Return what a stored commitment asks for.

    Raises:
        CommitmentFormatError: the row does not describe a commitment that we know.
    """
    state = from_committed_resource(
        CommitmentRecord(
            commitment_uuid=row.commitment_uuid,
            project_id=row.project_id,
            domain_id=row.domain_id,
            flavor_group_name=row.flavor_group_name,
            zone=row.zone,
            resource_type=row.resource_type,
            requested_amount=row.requested_amount,
            state=row.state,
            start_time=row.start_time,
            end_time=row.end_time,
        )
    )
    return WantedCommitment(
        commitment_uuid=row.commitment_uuid, state=state, confirm_by=row.confirm_by
    )


def _set_aside(row: Commitment, problem: str, now: datetime) -> None:
    """Note that a row cannot be processed, and look at it again after the longest delay."""
    log.error("commitment_invalid", commitment=row.commitment_uuid, problem=problem)
    Commitment.objects.filter(pk=row.pk).update(
        ready_status=False,
        ready_reason=Condition.REJECTED,
        ready_message=problem,
        ready_observed_generation=row.generation,
        next_reconcile_at=now + timedelta(seconds=settings.HEADROOM.retry.cap_seconds),
    )
