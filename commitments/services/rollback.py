"""Deciding in the background a commitment that may be rejected (spec commitments, 8.3, 8.4, 8.8).

A no leaves it with what was accepted before: the same planner plans the accepted commitment, and
that plan is applied in place of the refused one.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

import structlog

from commitments.domain.admission import (
    AdmissionPlan,
    AdmissionSnapshot,
    CommitmentDecision,
    CommitmentTarget,
    plan_admission,
)
from commitments.domain.state import (
    CommitmentFormatError,
    CommitmentRecord,
    CommitmentState,
    from_committed_resource,
)
from commitments.domain.statuses import Cause, Ruling
from commitments.metrics.slots import SLOT_LIMIT_REJECTIONS
from commitments.models import Commitment
from commitments.services.commitment_rows import asks_for_more, is_rejected, keeps_acceptance

log = structlog.get_logger(__name__)


def count_slot_limit_rejections(plan: AdmissionPlan) -> None:
    """Count the commitments of a refused plan that need too many slots (8.6)."""
    for decision in plan.rejections:
        desired = decision.target.desired
        if decision.exceeds_slot_limit and desired is not None:
            SLOT_LIMIT_REJECTIONS.labels(
                flavor_group=desired.flavor_group_name, availability_zone=desired.zone
            ).inc()


def may_be_rejected(row: Commitment) -> bool:
    """Return whether "no" is an answer for a stored commitment.

    Only where its writer asked for an answer, and only for what goes beyond the acceptance: a
    promise that lost its host is placed again, however long it takes.
    """
    return row.allow_rejection and asks_for_more(row)


def plan_rejectable(
    snapshot: AdmissionSnapshot, row: Commitment, target: CommitmentTarget, *, now: datetime
) -> AdmissionPlan:
    """Plan a commitment that may be rejected; a no becomes the plan of its rollback.

    What was rejected for this generation stays rejected without asking again. What cannot be known
    yet is no "no": it waits (8.5).

    Args:
        snapshot: What is decided on; its slot limit holds for the commitment, not for a rollback.
        row: The stored commitment.
        target: What it shall become.
    """
    if is_rejected(row) and target.is_holding:
        return _rejected(snapshot, row, target, message=row.ready_message, now=now)
    plan = plan_admission(snapshot, [target], may_reject=True, now=now)
    if not plan.rejections:
        return plan
    refusal = plan.rejections[0]
    if refusal.cause is Cause.TRANSIENT:
        return plan_admission(snapshot, [target], may_reject=False, now=now)
    count_slot_limit_rejections(plan)
    return _rejected(snapshot, row, target, message=refusal.message, now=now, refusal=refusal)


def _rejected(
    snapshot: AdmissionSnapshot,
    row: Commitment,
    target: CommitmentTarget,
    *,
    message: str,
    now: datetime,
    refusal: CommitmentDecision | None = None,
) -> AdmissionPlan:
    plan = plan_rollback(snapshot, row, target, now=now)
    decision = plan.decisions[0]
    return replace(
        plan,
        decisions=(
            replace(
                decision,
                outcome=Ruling.REJECTED,
                message=message,
                cause=refusal.cause if refusal is not None else None,
                is_complete=decision.outcome is not Ruling.RESERVING,
            ),
        ),
    )


def plan_rollback(
    snapshot: AdmissionSnapshot, row: Commitment, target: CommitmentTarget, *, now: datetime
) -> AdmissionPlan:
    """Plan the slots of what was accepted before, none where nothing was.

    Nothing limits the number of slots, and no running VM is taken in place of fresh room. A flavor
    group that is unknown for the moment leaves the slots as they are.

    Source: spec commitments, 8.8, 7.3.
    """
    accepted = _accepted_state(row)
    if accepted is None:
        state = target.desired
        back = replace(target, desired=state, is_holding=False, is_planned=False)
    else:
        back = replace(
            target,
            desired=accepted,
            is_holding=accepted.effective_amount(now) > 0,
            is_planned=False,
            accepted_cores=accepted.effective_cores(now),
        )
    unlimited = replace(snapshot, max_slots=0, payg={})
    return plan_admission(unlimited, [back], may_reject=False, now=now)


def _accepted_state(row: Commitment) -> CommitmentState | None:
    if not keeps_acceptance(row):
        return None
    accepted = row.accepted_spec or {}
    try:
        state = from_committed_resource(
            CommitmentRecord(
                commitment_uuid=row.commitment_uuid,
                project_id=str(accepted["projectID"]),
                domain_id=str(accepted.get("domainID", "")),
                flavor_group_name=str(accepted["flavorGroupName"]),
                zone=str(accepted["availabilityZone"]),
                resource_type=str(accepted["resourceType"]),
                requested_amount=int(accepted["amount"]),
                state=str(accepted["state"]),
                start_time=_time(accepted.get("startTime")),
                end_time=_time(accepted.get("endTime")),
            )
        )
    except (KeyError, TypeError, ValueError, CommitmentFormatError) as error:
        log.error(  # noqa: TRY400 - the row is the fact, not the stack
            "accepted_spec_invalid", commitment=row.commitment_uuid, problem=str(error)
        )
        return None
    return replace(state, parent_generation=row.generation)


def _time(text: str | None) -> datetime | None:
    return datetime.fromisoformat(text) if text else None
