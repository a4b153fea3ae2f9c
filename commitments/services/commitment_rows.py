"""Turning decisions about commitments into rows, conditions and events (spec commitments, 2, 8)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from django.conf import settings

from commitments.domain.accounting import CALLER_WAITS_RETRY_SECONDS, retry_delay_seconds
from commitments.domain.admission import (
    CommitmentDecision,
    CommitmentTarget,
)
from commitments.domain.conditions import ReadyCondition, commitment_changed_at
from commitments.domain.cores_account import CoresHolding
from commitments.domain.planner import SlotView
from commitments.domain.state import (
    CommitmentRecord,
    CommitmentState,
    from_committed_resource,
)
from commitments.domain.statuses import Cause, CommitmentStatus, ResourceType, Ruling
from commitments.domain.summary import SummaryInput, status_summary
from commitments.models import Commitment, Condition

SPEC_FIELDS = (
    "flavor_group_name",
    "resource_type",
    "requested_amount",
    "zone",
    "project_id",
    "domain_id",
    "start_time",
    "end_time",
    "confirm_by",
    "state",
    "allow_rejection",
)
OBSERVED_FIELDS = (
    "generation",
    "creator_request_id",
    "confirmed_at",
    "accepted_spec",
    "accepted_at",
    "accepted_amount",
    "last_reconcile_at",
    "next_reconcile_at",
    "ready_status",
    "ready_reason",
    "ready_message",
    "ready_observed_generation",
    "ready_changed_at",
    "status_summary",
)
WRITTEN_FIELDS = (*SPEC_FIELDS, *OBSERVED_FIELDS)
SILENT_FIELDS = frozenset({"next_reconcile_at", "last_reconcile_at", "status_summary"})
"""Columns whose change is no news: it makes no event and is announced to nobody."""

TOPIC = "commitments"
ACCEPTED_IDENTITY = {
    "projectID": "project_id",
    "flavorGroupName": "flavor_group_name",
    "availabilityZone": "zone",
    "resourceType": "resource_type",
}

CONDITION_OF_OUTCOME = {
    Ruling.ACCEPTED: (True, Condition.ACCEPTED, "commitment successfully reserved"),
    Ruling.PLANNED: (False, Condition.PLANNED, "commitment is not yet active"),
    Ruling.RELEASED: (False, Condition.EXPIRED, "commitment is no longer active"),
    Ruling.RESERVING: (False, Condition.RESERVING, ""),
    Ruling.REJECTED: (False, Condition.REJECTED, ""),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedCommitment:
    """What a writer wants one commitment to be.

    Attributes:
        commitment_uuid: Whose.
        state: The state to reach; None deletes it.
        confirm_by: Wanted start as Limes gave it.
        allow_rejection: Whether "no" may be answered; None keeps what is stored.
        request_id: Correlation id of the writer; empty keeps what is stored.
        believed_state: State that the writer believes it has now; empty when it did not say.
    """

    commitment_uuid: str
    state: CommitmentState | None
    confirm_by: datetime | None = None
    allow_rejection: bool | None = None
    request_id: str = ""
    believed_state: str = ""


def desired_fields(wanted: WantedCommitment, row: Commitment | None) -> dict[str, Any]:
    """Return the desired columns of a commitment, keeping what a repetition must not change.

    A start that was derived from the clock stays while the commitment stays live, a known domain is
    not forgotten, so that the same request twice gives the same row.

    Raises:
        ValueError: the commitment is to be deleted.
    """
    state = wanted.state
    if state is None or state.status is None:
        raise ValueError(f"commitment {wanted.commitment_uuid} has no desired state")
    start_time, domain_id = state.start_time, state.domain_id
    allow_rejection = bool(wanted.allow_rejection)
    if row is not None:
        stays_live = state.status.is_live and CommitmentStatus(row.state).is_live
        if stays_live and wanted.confirm_by is None and row.start_time is not None:
            start_time = row.start_time
        if row.project_id == state.project_id:
            domain_id = domain_id or row.domain_id
        if wanted.allow_rejection is None:
            allow_rejection = row.allow_rejection
    return {
        "flavor_group_name": state.flavor_group_name,
        "resource_type": state.resource_type.value,
        "requested_amount": state.requested_amount,
        "zone": state.zone,
        "project_id": state.project_id,
        "domain_id": domain_id,
        "start_time": start_time,
        "end_time": state.end_time,
        "confirm_by": wanted.confirm_by,
        "state": state.status.value,
        "allow_rejection": allow_rejection,
    }


def stored_state(row: Commitment) -> CommitmentState:
    """Return what a stored commitment asks for.

    Raises:
        CommitmentFormatError: the row does not describe a commitment that we know.
    """
    return from_committed_resource(
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


def next_generation(row: Commitment | None, fields: Mapping[str, Any]) -> int:
    """Return the generation after writing ``fields``: one more only if a value really differs."""
    if row is None:
        return 1
    differs = any(getattr(row, name) != new for name, new in fields.items())
    return row.generation + (1 if differs else 0)


def make_target(
    wanted: WantedCommitment,
    row: Commitment | None,
    slots: Mapping[int, tuple[SlotView, ...]],
    now: datetime,
) -> CommitmentTarget:
    """Return what the planner needs to know of one commitment."""
    stored = slots.get(row.pk, ()) if row is not None else ()
    held_cores = _held_cores(row)
    if wanted.state is None:
        return CommitmentTarget(
            commitment_uuid=wanted.commitment_uuid,
            desired=None,
            is_holding=False,
            slots=stored,
            held_cores=held_cores,
        )
    fields = desired_fields(wanted, row)
    desired = replace(
        wanted.state,
        domain_id=fields["domain_id"],
        start_time=fields["start_time"],
        parent_generation=next_generation(row, fields),
    )
    stays = held_cores is not None and (held_cores.flavor_group_name, held_cores.zone) == (
        desired.flavor_group_name,
        desired.zone,
    )
    return CommitmentTarget(
        commitment_uuid=wanted.commitment_uuid,
        desired=desired,
        is_holding=desired.effective_amount(now) > 0,
        is_planned=desired.status is CommitmentStatus.PLANNED and not has_ended(desired, now),
        slots=stored,
        accepted_cores=held_cores.vcpus if held_cores is not None and stays else 0,
        held_cores=held_cores,
        previous_project_id=row.project_id if row is not None else "",
        holds_all_or_nothing=desired.status is CommitmentStatus.PENDING
        and (row is None or row.accepted_amount is None),
    )


def _held_cores(row: Commitment | None) -> CoresHolding | None:
    if row is None or row.resource_type != ResourceType.CORES or not row.accepted_amount:
        return None
    return CoresHolding(
        project_id=row.project_id,
        flavor_group_name=row.flavor_group_name,
        zone=row.zone,
        vcpus=row.accepted_amount,
    )


def has_ended(state: CommitmentState, now: datetime) -> bool:
    """Return whether the end of a commitment has come, whatever its state says (8.2)."""
    return state.end_time is not None and state.end_time <= now


class Written(StrEnum):
    """What a decision did to the row of a commitment."""

    UNCHANGED = "unchanged"
    SILENTLY = "silently"
    NEWS = "news"


def write_decision(
    row: Commitment,
    decision: CommitmentDecision,
    wanted: WantedCommitment,
    now: datetime,
    *,
    assigned_vm_count: int = 0,
) -> Written:
    """Set the columns of a commitment to what was decided; the caller saves.

    Args:
        row: Stored or new row; a new one has no primary key yet.
        decision: What was decided.
        wanted: What was asked.
        now: Time of the decision.
        assigned_vm_count: VMs that it covers, for the summary.

    Returns:
        Whether any column differs from before, an unchanged row must not be written; and whether
        more than a timer does, which makes an event.
    """
    is_new = row.pk is None
    before = {name: getattr(row, name) for name in WRITTEN_FIELDS}
    fields = desired_fields(wanted, None if is_new else row)
    row.generation = next_generation(None if is_new else row, fields)
    for name, new in fields.items():
        setattr(row, name, new)
    _set_condition(row, decision, now)
    _set_acceptance(row, decision, now)
    row.next_reconcile_at = _next_reconcile_at(row, decision, now)
    differing = {name for name in WRITTEN_FIELDS if before[name] != getattr(row, name)}
    if not differing and not is_new:
        return Written.UNCHANGED
    row.status_summary = summary_of(row, now, assigned_vm_count=assigned_vm_count)
    row.last_reconcile_at = now
    row.creator_request_id = wanted.request_id or row.creator_request_id
    return Written.NEWS if is_new or differing - SILENT_FIELDS else Written.SILENTLY


def _set_condition(row: Commitment, decision: CommitmentDecision, now: datetime) -> None:
    status, reason, message = CONDITION_OF_OUTCOME[decision.outcome]
    if decision.outcome is Ruling.RELEASED and row.state == CommitmentStatus.SUPERSEDED:
        reason = Condition.SUPERSEDED
    stored = None
    if row.ready_changed_at is not None:
        stored = ReadyCondition(
            status=row.ready_status, reason=row.ready_reason, changed_at=row.ready_changed_at
        )
    row.ready_changed_at = commitment_changed_at(
        stored,
        status=status,
        reason=reason.value,
        now=now,
        resets_timer=row.ready_observed_generation != row.generation,
    )
    row.ready_status = status
    row.ready_reason = reason.value
    row.ready_message = decision.message or message
    row.ready_observed_generation = row.generation


def _set_acceptance(row: Commitment, decision: CommitmentDecision, now: datetime) -> None:
    if decision.outcome is Ruling.ACCEPTED:
        spec = spec_record(row)
        if row.accepted_spec != spec:
            row.accepted_spec = spec
            row.accepted_at = now
        row.accepted_amount = row.requested_amount
        if row.state == CommitmentStatus.CONFIRMED and row.confirmed_at is None:
            row.confirmed_at = now
    elif _is_rolled_back(row, decision):
        row.accepted_amount = (row.accepted_spec or {}).get("amount")
    elif decision.outcome is not Ruling.RESERVING:
        row.accepted_amount = None


def _is_rolled_back(row: Commitment, decision: CommitmentDecision) -> bool:
    """Return whether a rejected commitment holds what was accepted before.

    Not once the acceptance ended, nor when nobody can read it.
    """
    is_rejected = decision.outcome is Ruling.REJECTED
    return is_rejected and decision.target.is_holding and keeps_acceptance(row)


def keeps_acceptance(row: Commitment) -> bool:
    """Return whether a rejected commitment goes on holding what was accepted before.

    Source: spec commitments, 8.3 (pending: gives up everything), 8.4 (rolled back).
    """
    return CommitmentStatus(row.state).is_active and row.accepted_spec is not None


def asks_for_more(row: Commitment) -> bool:
    """Return whether a commitment asks for more, or for other capacity, than was accepted.

    What was accepted is a promise: it may be late, it is never taken back. One without an amount
    promises nothing.
    """
    accepted = row.accepted_spec or {}
    amount = accepted.get("amount")
    return (
        not isinstance(amount, int)
        or row.requested_amount > amount
        or any(accepted.get(key) != getattr(row, name) for key, name in ACCEPTED_IDENTITY.items())
    )


def is_rejected(row: Commitment) -> bool:
    """Return whether a commitment was already rejected for its present generation (8.4)."""
    return (
        row.ready_reason == Condition.REJECTED and row.ready_observed_generation == row.generation
    )


def _next_reconcile_at(
    row: Commitment, decision: CommitmentDecision, now: datetime
) -> datetime | None:
    """Return when to look again: at a retry, else at the next start or end that is known."""
    is_incomplete = decision.outcome is Ruling.REJECTED and not decision.is_complete
    is_reserving = decision.outcome is Ruling.RESERVING
    if is_reserving and row.allow_rejection and decision.cause is Cause.TRANSIENT:
        return now + timedelta(seconds=CALLER_WAITS_RETRY_SECONDS)  # somebody waits (8.5)
    if is_reserving or is_incomplete:
        elapsed = now - (row.ready_changed_at or now)
        delay_seconds = retry_delay_seconds(
            elapsed_seconds=int(elapsed.total_seconds()),
            base_seconds=settings.HEADROOM.retry.base_seconds,
            cap_seconds=settings.HEADROOM.retry.cap_seconds,
        )
        return now + timedelta(seconds=delay_seconds)
    if decision.outcome not in {Ruling.ACCEPTED, Ruling.PLANNED, Ruling.REJECTED}:
        return None
    start_time = row.start_time if decision.outcome is Ruling.ACCEPTED else None
    known = (start_time, row.end_time, decision.retry_at)
    ahead = [moment for moment in known if moment and moment > now]
    if decision.outcome is Ruling.REJECTED and keeps_acceptance(row):
        accepted_end = (row.accepted_spec or {}).get("endTime")
        ends = datetime.fromisoformat(accepted_end) if accepted_end else None
        ahead += [ends] if ends and ends > now else []
    return min(ahead, default=None)


def spec_record(row: Commitment) -> dict[str, Any]:
    """Return the desired fields of a commitment as they are kept at its acceptance."""
    return {
        "commitmentUUID": row.commitment_uuid,
        "schedulingDomain": row.scheduling_domain,
        "flavorGroupName": row.flavor_group_name,
        "resourceType": row.resource_type,
        "amount": row.requested_amount,
        "availabilityZone": row.zone,
        "projectID": row.project_id,
        "domainID": row.domain_id,
        "startTime": row.start_time.isoformat() if row.start_time else None,
        "endTime": row.end_time.isoformat() if row.end_time else None,
        "state": row.state,
        "allowRejection": row.allow_rejection,
    }


def summary_of(row: Commitment, now: datetime, *, assigned_vm_count: int = 0) -> str:
    """Return the one-line status of a commitment (spec commitments, 8.10)."""
    accepted = row.accepted_spec or {}
    return status_summary(
        SummaryInput(
            ready_reason=row.ready_reason,
            ready_message=row.ready_message,
            amount=row.requested_amount,
            flavor_group_name=row.flavor_group_name,
            zone=row.zone,
            resource_type=row.resource_type,
            accepted_amount=accepted.get("amount"),
            accepted_flavor_group_name=accepted.get("flavorGroupName", ""),
            accepted_zone=accepted.get("availabilityZone", ""),
            accepted_resource_type=accepted.get("resourceType", ""),
            assigned_vm_count=assigned_vm_count,
            end_time=row.end_time,
        ),
        now,
    )
