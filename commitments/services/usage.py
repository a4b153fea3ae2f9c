"""Renewing which commitment covers which VM, project by project (spec commitments, 14).

One run per project holds the project's usage lock, so that the assignment is a function of rows and
not of who ran last; running it twice changes nothing.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

import structlog
from django.db import DatabaseError, transaction
from django.db.models import F, Q
from django.utils import timezone

from capacity.locks import LOCK_NOT_AVAILABLE, LockSpace, sqlstate_of, take_lock
from commitments import metrics
from commitments.domain.assignment import (
    AssignableVM,
    CoveredUsage,
    UsableCommitment,
    assign_vms,
)
from commitments.domain.statuses import ACTIVE_STATUSES, ResourceType
from commitments.models import Commitment, InstanceAssignment
from commitments.selectors.usage import list_project_vms
from commitments.services.rows import summary_of
from journal.actors import Actor
from journal.errors import Busy, NotReady

log = structlog.get_logger(__name__)

BATCH_ROWS = 1000
NOTHING_COVERED = CoveredUsage()
OBSERVED_FIELDS = (
    "used_memory_bytes",
    "used_vcpus",
    "last_usage_reconcile_at",
    "usage_observed_generation",
    "status_summary",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageRun:
    """What one run over a project did.

    Attributes:
        commitments: Commitments that VMs were assigned to, or could have been.
        cleared: Commitments that are over and gave up their VMs.
        assigned: Assignments there are now, memory and cores counted apart.
        changed: Assignments that were added, moved or removed.
    """

    commitments: int = 0
    cleared: int = 0
    assigned: int = 0
    changed: int = 0


def reconcile_all_usage(*, actor: Actor, request_id: str, only_changed: bool = False) -> int:
    """Renew the assignment of every project that has commitments.

    Each project is a transaction of its own; one that fails or is busy is logged and skipped.

    Args:
        actor: Who does it.
        request_id: Correlation id.
        only_changed: Only projects with a commitment that was accepted, changed or ended since its
            usage was assigned (spec commitments, 14.1 gate 6 and 14.6).

    Returns:
        How many projects were renewed.
    """
    commitments = Commitment.objects.filter(
        Q(accepted_spec__isnull=False) | Q(last_usage_reconcile_at__isnull=False)
    )
    if only_changed:
        is_active = Q(state__in=[state.value for state in ACTIVE_STATUSES])
        has_changed = Q(usage_observed_generation__isnull=True) | ~Q(
            usage_observed_generation=F("generation")
        )
        commitments = commitments.filter(
            (is_active & has_changed) | (~is_active & Q(assignments__isnull=False))
        )
    project_ids = commitments.order_by("project_id").values_list("project_id", flat=True).distinct()
    renewed = 0
    for project_id in list(project_ids):
        try:
            reconcile_project_usage(project_id, actor=actor, request_id=request_id)
        except (Busy, NotReady, DatabaseError) as error:
            log.warning("usage_reconcile_skipped", project=project_id, error=str(error))
        else:
            renewed += 1
    return renewed


def reconcile_project_usage(
    project_id: str, *, actor: Actor, request_id: str, now: datetime | None = None
) -> UsageRun:
    """Renew which commitments of a project cover which of its VMs.

    Takes the usage lock of the project, then its commitments in order of primary key.

    Args:
        project_id: The project.
        actor: Who asks.
        request_id: Correlation id.
        now: The present; the clock's when left out.

    Raises:
        Busy: the project's commitments are being changed by another.
        NotReady: flavor groups were not extracted yet.

    Source: spec commitments, 14.
    """
    now = now or timezone.now()
    started = time.monotonic()
    result = "error"
    try:
        with transaction.atomic(durable=True):
            take_lock(LockSpace.USAGE, [project_id])
            run = _reconcile(project_id, now)
        result = "success"
    except DatabaseError as error:
        if sqlstate_of(error) != LOCK_NOT_AVAILABLE:
            raise
        message = f"commitments of project {project_id} are being changed by another"
        raise Busy(message) from error
    finally:
        seconds = time.monotonic() - started
        metrics.USAGE_RECONCILE_SECONDS.labels(result=result).observe(seconds)
    log.info(
        "usage_reconciled",
        project=project_id,
        by=actor.name,
        origin=request_id,
        changed=run.changed,
    )
    return run


def _reconcile(project_id: str, now: datetime) -> UsageRun:
    rows = list(
        Commitment.objects.filter(project_id=project_id)
        .order_by("pk")
        .select_for_update(of=("self",), no_key=True)
    )
    usable = {row.commitment_uuid: one for row in rows if (one := _usable(row, now)) is not None}
    vms = [
        AssignableVM(
            uuid=vm.uuid,
            zone=vm.zone,
            group=vm.group,
            memory_bytes=vm.memory_bytes,
            vcpus=vm.vcpus,
            created_at=vm.created_at,
        )
        for vm in (list_project_vms(project_id) if usable else ())
    ]
    covered = assign_vms(vms, usable.values())
    written, cleared = _observe(rows, covered, now)
    Commitment.objects.bulk_update([*written, *cleared], OBSERVED_FIELDS, batch_size=BATCH_ROWS)
    wanted = _wanted_assignments(written, covered)
    changed = _write_assignments(project_id, wanted)
    return UsageRun(
        commitments=len(written), cleared=len(cleared), assigned=len(wanted), changed=changed
    )


def _usable(row: Commitment, now: datetime) -> UsableCommitment | None:
    """Return a commitment as it was accepted, or None when it is not in force (14.1, 14.2)."""
    spec = row.accepted_spec or {}
    if spec.get("state") not in ACTIVE_STATUSES or _is_over(row, now):
        return None
    try:
        start_time, end_time = _time(spec.get("startTime")), _time(spec.get("endTime"))
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


def _time(text: str | None) -> datetime | None:
    return datetime.fromisoformat(text) if text else None


def _observe(
    rows: Sequence[Commitment], covered: Mapping[str, CoveredUsage], now: datetime
) -> tuple[list[Commitment], list[Commitment]]:
    written, cleared = [], []
    for row in rows:
        usage = covered.get(row.commitment_uuid)
        if usage is not None:
            if row.last_usage_reconcile_at is not None:
                age = now - row.last_usage_reconcile_at
                metrics.USAGE_STATUS_AGE_SECONDS.observe(max(age.total_seconds(), 0))
            row.last_usage_reconcile_at = now
            row.usage_observed_generation = row.generation
            written.append(row)
        elif row.last_usage_reconcile_at is not None and _is_over(row, now):
            row.last_usage_reconcile_at = None
            row.usage_observed_generation = None
            cleared.append(row)
        else:
            continue
        usage = usage or NOTHING_COVERED
        row.used_memory_bytes, row.used_vcpus = usage.memory_bytes, usage.vcpus
        row.status_summary = summary_of(row, now, assigned_vm_count=len(usage.vm_uuids))
    return written, cleared


def _wanted_assignments(
    rows: Iterable[Commitment], covered: Mapping[str, CoveredUsage]
) -> dict[tuple[str, str], tuple[int, int]]:
    return {
        (vm_uuid, row.resource_type): (row.pk, position)
        for row in rows
        for position, vm_uuid in enumerate(covered[row.commitment_uuid].vm_uuids)
    }


def _write_assignments(project_id: str, wanted: Mapping[tuple[str, str], tuple[int, int]]) -> int:
    """Make the stored assignments the wanted ones; returns how many changed."""
    uuids = {vm_uuid for vm_uuid, _ in wanted}
    gone, moved, kept = [], [], set()
    stored = InstanceAssignment.objects.filter(
        Q(commitment__project_id=project_id) | Q(vm_uuid__in=uuids)
    ).order_by("pk")
    for row in stored:
        key = (row.vm_uuid, row.resource_type)
        kept.add(key)
        if key not in wanted:
            gone.append(row.pk)
        elif wanted[key] != (row.commitment_id, row.position):
            row.commitment_id, row.position = wanted[key]
            moved.append(row)
    new = [
        InstanceAssignment(
            vm_uuid=vm_uuid, resource_type=kind, commitment_id=commitment_id, position=position
        )
        for (vm_uuid, kind), (commitment_id, position) in wanted.items()
        if (vm_uuid, kind) not in kept
    ]
    if gone:
        InstanceAssignment.objects.filter(pk__in=gone).delete()
    InstanceAssignment.objects.bulk_update(
        moved, ["commitment_id", "position"], batch_size=BATCH_ROWS
    )
    InstanceAssignment.objects.bulk_create(new, batch_size=BATCH_ROWS)
    return len(gone) + len(moved) + len(new)
