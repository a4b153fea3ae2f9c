"""Renewing which commitment covers which VM, project by project (spec commitments, 14).

One run per project holds the project's usage lock, so that the assignment is a function of rows and
not of who ran last. Running it again writes nothing; so ``last_usage_reconcile_at`` says when the
usage of a commitment last changed (or its status line was refreshed), and the time of the last look
is in :class:`UsageCheck`.

What makes a run cheap is that it follows changes: rows that the snapshot of the last whole run did
not show. A run that dies moves no snapshot, and the next one does its work again.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import structlog
from django.db import DatabaseError, transaction

from capacity.groups.reading import definitions_fingerprint
from capacity.locks import LockSpace, take_lock
from commitments import metrics
from commitments.domain.assignment import (
    NOTHING_COVERED,
    CoveredUsage,
    Place,
    SizedVM,
    UsableCommitment,
    assign_in_order,
)
from commitments.domain.statuses import ACTIVE_STATUSES, ResourceType
from commitments.models import Commitment, Condition, UsageCheck
from commitments.selectors.usage_reads import (
    all_projects,
    changed_projects,
    groups_by_flavor,
    last_check,
    stored_assignments,
    vms_by_place,
)
from commitments.services.commitment_rows import summary_of
from commitments.services.side_by_side import refused_of
from commitments.services.usage_rows import (
    AssignmentChanges,
    CommitmentUsage,
    ProjectFigures,
    WantedVMs,
    assignment_changes,
    write_assignments,
    write_commitments,
    write_project,
)
from commitments.services.vm_list import unbelieved_zones
from journal.actors import Actor
from journal.clock import database_now
from journal.errors import Busy, NotReady
from journal.history import Moment, may_store, read_moment
from journal.leases import held_lease
from journal.outages import is_retryable
from journal.statements import execute

log = structlog.get_logger(__name__)

RUN_LOCK = "usage"
SUMMARY_MAX_AGE = timedelta(days=1)
"""A status line says what is left of the term: it is refreshed once a day."""
LAST_MOMENT = datetime.max.replace(tzinfo=UTC)

READ_FIELDS = (
    "commitment_uuid",
    "flavor_group_name",
    "resource_type",
    "requested_amount",
    "zone",
    "start_time",
    "end_time",
    "state",
    "generation",
    "accepted_spec",
    "used_memory_bytes",
    "used_vcpus",
    "last_usage_reconcile_at",
    "usage_observed_generation",
    "ready_status",
    "ready_reason",
    "ready_message",
    "ready_observed_generation",
    "status_summary",
    "changed_xid",
)

MARK_DUE = """
INSERT INTO commitments_projectusage (project_id, assigned_vms, uncovered_vms, is_due)
SELECT project_id, 0, 0, true FROM unnest(%s::text[]) AS project_id
    ON CONFLICT (project_id) DO UPDATE SET is_due = true
"""

#: Commitments that the quota controller has not seen leaving are kept for it.
FORGET_DEPARTURES = """
DELETE FROM commitments_projectdeparture AS departure
 WHERE pg_visible_in_snapshot(changed_xid::text::xid8, %s::pg_snapshot)
   AND NOT (is_of_commitment
            AND EXISTS (SELECT FROM capacity_projectquota AS quota
                         WHERE quota.project_id = departure.project_id
                           AND quota.counted_xmin <= departure.changed_xid))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageRun:
    """What one run over a project did.

    Attributes:
        commitments: Commitments that VMs were assigned to, or could have been.
        cleared: Commitments that are over and gave up their VMs.
        assigned: Assignments there are now, memory and cores counted apart.
        changed: Assignments that were added, moved or removed.
        written: Commitments whose row was written.
    """

    commitments: int = 0
    cleared: int = 0
    assigned: int = 0
    changed: int = 0
    written: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plan:
    """What is to be written for one project."""

    run: UsageRun
    assignments: AssignmentChanges
    commitments: tuple[CommitmentUsage, ...]
    figures: ProjectFigures

    @property
    def has_writes(self) -> bool:
        return bool(self.assignments.count or self.commitments)


def reconcile_all_usage(
    *, actor: Actor, request_id: str, only_changed: bool = False, now: datetime | None = None
) -> int:
    """Renew the assignment of every project that has commitments.

    Each project is a transaction of its own; one that fails or is busy is logged, skipped, and due
    in the next run. While another run is under way nothing is done: what it does not see, the next
    one does.

    Args:
        only_changed: Only projects whose VMs or commitments changed, began or ended since the last
            run, or that are still due (spec commitments, 14.1 gate 6 and 14.6).
        now: The present; the clock's when left out.

    Returns:
        How many projects were looked at; none when a VM list is not believed, since its VMs would
        lose their commitments.
    """
    now = now or database_now()
    with held_lease(RUN_LOCK) as is_ours:
        if not is_ours:
            log.info("usage_run_skipped", reason="another run is under way")
            return 0
        moment = read_moment()
        fingerprint = definitions_fingerprint()
        try:
            group_of = groups_by_flavor()
        except NotReady as error:
            log.warning("usage_run_skipped", reason=str(error))
            return 0
        # What this transaction wrote itself, no snapshot tells apart: then everything is looked at.
        is_tellable = only_changed and not moment.has_written
        since = last_check(fingerprint) if is_tellable else ""
        projects = changed_projects(since, now) if since else all_projects()
        unbelieved = unbelieved_zones() if projects else {}
        if unbelieved:
            log.error("usage_run_refused", zones=unbelieved)
            return 0

        def is_reconciled(project_id: str) -> bool:
            try:
                reconcile_project_usage(
                    project_id, actor=actor, request_id=request_id, now=now, group_of=group_of
                )
            except (Busy, DatabaseError) as error:
                log.warning("usage_reconcile_skipped", project_id=project_id, error=str(error))
                return False
            return True

        failed = refused_of(projects, is_reconciled)
        _remember_check(moment, fingerprint, failed, now, is_full=not since)
    return len(projects) - len(failed)


def _remember_check(
    moment: Moment, fingerprint: str, failed: Sequence[str], now: datetime, *, is_full: bool
) -> None:
    with transaction.atomic():
        if not may_store(moment, reader="usage"):
            return
        snapshot = moment.snapshot
        if failed:
            execute(MARK_DUE, [list(failed)])
        fields = {"snapshot": snapshot, "group_fingerprint": fingerprint, "checked_at": now}
        if is_full:
            fields["fully_checked_at"] = now
        UsageCheck.objects.update_or_create(singleton=True, defaults=fields)
        execute(FORGET_DEPARTURES, [snapshot])


def reconcile_project_usage(
    project_id: str,
    *,
    actor: Actor,
    request_id: str,
    now: datetime | None = None,
    group_of: Mapping[str, str] | None = None,
) -> UsageRun:
    """Renew which commitments of a project cover which of its VMs.

    Takes the usage lock of the project; where something has to be written, also its commitments in
    order of primary key.

    Args:
        now: The present; the clock's when left out.
        group_of: Mapping flavor name -> flavor group; the present one when left out.

    Raises:
        Busy: the project's commitments are being changed by another.
        NotReady: flavor groups were not extracted yet.

    Source: spec commitments, 14.
    """
    now = now or database_now()
    group_of = groups_by_flavor() if group_of is None else group_of
    started = time.monotonic()
    result = "error"
    try:
        with transaction.atomic(durable=True):
            take_lock(LockSpace.USAGE, [project_id])
            run = _reconcile(project_id, now, group_of)
        result = "success"
    except DatabaseError as error:
        if not is_retryable(error):
            raise
        raise Busy(f"commitments of project {project_id} are being changed by another") from error
    finally:
        seconds = time.monotonic() - started
        metrics.USAGE_RECONCILE_SECONDS.labels(result=result).observe(seconds)
    if run.changed or run.written:
        log.info(
            "usage_reconciled",
            project_id=project_id,
            by=actor.name,
            origin=request_id,
            changed=run.changed,
        )
    return run


def _reconcile(project_id: str, now: datetime, group_of: Mapping[str, str]) -> UsageRun:
    """Plan on what is read without locks; only where that has to be written, lock and look again.

    Commitments cannot change once they are locked; VMs that do are seen by the next run.
    """
    rows = _read(project_id)
    plan = _plan(project_id, rows, now, group_of)
    if plan.has_writes:
        locked = (
            Commitment.objects.filter(project_id=project_id)
            .order_by("pk")
            .select_for_update(of=("self",), no_key=True)
        )
        seen = [(row.pk, row.changed_xid) for row in rows]
        if list(locked.values_list("pk", "changed_xid")) != seen:
            rows = _read(project_id)
            plan = _plan(project_id, rows, now, group_of)
        write_assignments(plan.assignments)
        write_commitments(plan.commitments)
    write_project(project_id, plan.figures, has_written=bool(plan.commitments))
    _observe_age(rows, now)
    return plan.run


def _read(project_id: str) -> list[Commitment]:
    rows = Commitment.objects.filter(project_id=project_id).order_by("pk")
    return list(rows.only(*READ_FIELDS))


def _observe_age(rows: Sequence[Commitment], now: datetime) -> None:
    """Count once per run how old the previous result was."""
    times = [row.last_usage_reconcile_at for row in rows if row.last_usage_reconcile_at]
    if not times:
        return
    checked = UsageCheck.objects.values_list("checked_at", flat=True).first()
    previous = max([*times, checked] if checked else times)
    metrics.USAGE_STATUS_AGE_SECONDS.observe(max((now - previous).total_seconds(), 0))


def _plan(
    project_id: str, rows: Sequence[Commitment], now: datetime, group_of: Mapping[str, str]
) -> _Plan:
    usable = {
        row.commitment_uuid: one for row in rows if (one := usable_commitment(row, now)) is not None
    }
    vms = vms_by_place(project_id, group_of) if usable else {}
    covered = assign_in_order(vms, usable.values())
    stored = stored_assignments([row.pk for row in rows])
    wanted = [
        WantedVMs(
            commitment_id=row.pk,
            resource_type=row.resource_type,
            vm_uuids=covered.get(row.commitment_uuid, NOTHING_COVERED).vm_uuids,
        )
        for row in rows
        if row.commitment_uuid in covered or _is_to_clear(row, now) or row.pk in stored
    ]
    changes = assignment_changes(wanted, stored)
    differing = frozenset(changes.commitment_ids)
    written = [
        fresh
        for row in rows
        if (fresh := _fresh_usage(row, covered, now, has_moved=row.pk in differing)) is not None
    ]
    return _Plan(
        run=UsageRun(
            commitments=len(covered),
            cleared=sum(_is_to_clear(row, now) for row in rows),
            assigned=sum(len(one.vm_uuids) for one in wanted),
            changed=changes.count,
            written=len(written),
        ),
        assignments=changes,
        commitments=tuple(written),
        figures=_figures(rows, usable, covered, vms, now),
    )


def _figures(
    rows: Sequence[Commitment],
    usable: Mapping[str, UsableCommitment],
    covered: Mapping[str, CoveredUsage],
    vms: Mapping[Place, Sequence[SizedVM]],
    now: datetime,
) -> ProjectFigures:
    in_memory = [
        uuid
        for owner, usage in covered.items()
        if usable[owner].is_memory
        for uuid in usage.vm_uuids
    ]
    all_covered = {uuid for usage in covered.values() for uuid in usage.vm_uuids}
    places = {(one.zone, one.group) for one in usable.values() if one.is_memory}
    boundaries = [
        moment
        for row in rows
        if row.state in ACTIVE_STATUSES and row.accepted_spec
        for moment in _term(row)
        if moment is not None and moment > now
    ]
    return ProjectFigures(
        assigned_vms=len(all_covered),
        uncovered_vms=sum(len(vms.get(place, ())) for place in places) - len(in_memory),
        next_change_at=min(boundaries, default=None),
    )


def _term(row: Commitment) -> tuple[datetime | None, ...]:
    spec = row.accepted_spec or {}
    try:
        return (
            spec_time(spec.get("startTime")),
            _just_after(spec_time(spec.get("endTime"))),
            _just_after(row.end_time),
        )
    except (TypeError, ValueError):  # logged where it is read
        return ()


def _just_after(moment: datetime | None) -> datetime | None:
    """A commitment still counts at its end; after the last moment of all there is none."""
    if moment is None or moment >= LAST_MOMENT:
        return None
    return moment + timedelta(microseconds=1)


def usable_commitment(row: Commitment, now: datetime) -> UsableCommitment | None:
    """Return a commitment as it was accepted, or None when it is not in force (14.1, 14.2)."""
    spec = row.accepted_spec or {}
    if spec.get("state") not in ACTIVE_STATUSES or _is_over(row, now):
        return None
    try:
        start_time, end_time = spec_time(spec.get("startTime")), spec_time(spec.get("endTime"))
        usable = UsableCommitment(
            uuid=row.commitment_uuid,
            zone=str(spec["availabilityZone"]),
            group=str(spec["flavorGroupName"]),
            is_memory=ResourceType(spec["resourceType"]) is ResourceType.MEMORY,
            amount=int(spec["amount"]),
            start_time=start_time,
        )
    except (KeyError, TypeError, ValueError) as error:
        log.warning("accepted_spec_invalid", commitment=row.commitment_uuid, error=str(error))
        return None
    if (start_time and start_time > now) or (end_time and end_time < now):
        return None
    return usable


def _is_over(row: Commitment, now: datetime) -> bool:
    if row.state not in ACTIVE_STATUSES:
        return True
    return row.end_time is not None and row.end_time < now


def spec_time(text: str | None) -> datetime | None:
    """Return a time of an accepted specification.

    Raises:
        ValueError: it is none.
    """
    return datetime.fromisoformat(text) if text else None


def _is_to_clear(row: Commitment, now: datetime) -> bool:
    """Whether a commitment is over and still shows usage (14.1, gates 2 and 3)."""
    return _is_over(row, now) and (
        row.last_usage_reconcile_at is not None or bool(row.used_memory_bytes or row.used_vcpus)
    )


def _fresh_usage(
    row: Commitment, covered: Mapping[str, CoveredUsage], now: datetime, *, has_moved: bool
) -> CommitmentUsage | None:
    """Return the observed columns of a commitment, or None where they stay as they are."""
    usage = covered.get(row.commitment_uuid)
    if usage is None and not _is_to_clear(row, now) and not has_moved:
        return None
    is_covering = usage is not None
    usage = usage or NOTHING_COVERED
    generation = _observed_generation(row) if is_covering else None
    summary = summary_of(row, now, assigned_vm_count=len(usage.vm_uuids))
    last = row.last_usage_reconcile_at
    is_same = (
        not has_moved
        and is_covering
        and last is not None
        and (usage.memory_bytes, usage.vcpus) == (row.used_memory_bytes, row.used_vcpus)
        and generation == row.usage_observed_generation
        and (summary == row.status_summary or now - last < SUMMARY_MAX_AGE)
    )
    if is_same:
        return None
    return CommitmentUsage(
        commitment_id=row.pk,
        used_memory_bytes=usage.memory_bytes,
        used_vcpus=usage.vcpus,
        reconciled_at=now if is_covering else None,
        generation=generation,
        summary=summary,
    )


def _observed_generation(row: Commitment) -> int | None:
    """Return the generation that the usage stands for: the accepted one (14.1 gate 5, 14.7).

    A commitment in transition keeps what it covers, by its accepted specification, and counts as
    not observed until it is decided.
    """
    is_decided = bool(row.ready_status) or row.ready_reason == Condition.REJECTED
    if is_decided and row.ready_observed_generation == row.generation:
        return row.generation
    return row.usage_observed_generation
