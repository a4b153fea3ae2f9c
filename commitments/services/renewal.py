"""Renewing the empty slots of a commitment whose flavors changed size (spec commitments, 6.7).

Old slots give way only to new ones that all have a host, in the transaction that makes those. Else
they stay as they are, the commitment stays accepted, and it is tried again later.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

import structlog
from django.conf import settings
from django.db import transaction

from capacity.models import FlavorGroup
from commitments.domain.accounting import retry_delay_seconds
from commitments.domain.admission import (
    AdmissionPlan,
    AdmissionSnapshot,
    CommitmentDecision,
    CommitmentTarget,
    Outcome,
    plan_admission,
)
from commitments.domain.renewal import are_up_to_date
from commitments.metrics.slots import SLOT_RENEWALS

log = structlog.get_logger(__name__)


def plan_renewing(
    snapshot: AdmissionSnapshot, target: CommitmentTarget, *, now: datetime
) -> AdmissionPlan:
    """Plan one commitment with outdated slots replaced; its ordinary plan if they cannot all be.

    Args:
        snapshot: What is decided on.
        target: A commitment that holds outdated slots.
        now: The present.
    """
    renewing = replace(snapshot, renews_slots=True, payg={})
    plan = plan_admission(renewing, [target], may_reject=False, now=now)
    decision = plan.decisions[0]
    is_renewed = decision.slot_plan is not None and bool(decision.slot_plan.renew_ids)
    if is_renewed and decision.outcome is Outcome.ACCEPTED and _is_worth_it(snapshot, decision):
        _count("renewed")
        return plan
    if is_renewed:
        log.info("slots_not_renewed", commitment=target.commitment_uuid, message=decision.message)
    _count("waiting")
    plan = plan_admission(snapshot, [target], may_reject=False, now=now)
    waiting = replace(plan.decisions[0], retry_at=_next_try(target, now))
    return replace(plan, decisions=(waiting,))


def _is_worth_it(snapshot: AdmissionSnapshot, decision: CommitmentDecision) -> bool:
    """Return whether the new slots need no renewal themselves."""
    desired, plan = decision.target.desired, decision.slot_plan
    if desired is None or plan is None:
        return False
    return are_up_to_date(plan.creates, snapshot.groups[desired.flavor_group_name])


def _next_try(target: CommitmentTarget, now: datetime) -> datetime:
    """Return when to try again: the usual delay, counted from the change of the flavors."""
    name = target.desired.flavor_group_name if target.desired is not None else ""
    resized_at = FlavorGroup.objects.filter(name=name).values_list("resized_at", flat=True).first()
    elapsed = now - resized_at if resized_at is not None else timedelta(0)
    delay_seconds = retry_delay_seconds(
        elapsed_seconds=max(0, int(elapsed.total_seconds())),
        base_seconds=settings.HEADROOM.retry.base_seconds,
        cap_seconds=settings.HEADROOM.retry.cap_seconds,
    )
    return now + timedelta(seconds=delay_seconds)


def _count(result: str) -> None:
    transaction.on_commit(lambda: SLOT_RENEWALS.labels(result=result).inc(), robust=True)
