"""Deciding change-commitments: one request, one transaction (spec liquid, 11).

The zones of the request are locked, the whole batch is planned on one snapshot and either written
as a whole or not at all. A dry run is the same plan, not applied.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

import structlog
from django.conf import settings
from django.db import transaction

from capacity.figures.group_capacity import ensure_totals
from capacity.groups.group_settings import settings_for_group
from capacity.groups.reading import load_group_definitions, load_group_settings
from capacity.groups.units import UnitError, declared_units_to_bytes
from capacity.ledger.slot_request import with_told_names
from capacity.locks import zone_lock
from commitments.domain.accounting import (
    RejectedCommitment,
    dry_run_reason,
    dry_run_timeout_reason,
    rejection_reason,
    retry_at,
    timeout_reason,
)
from commitments.domain.admission import (
    AdmissionPlan,
    CommitmentTarget,
    plan_admission,
)
from commitments.domain.advice import Advice, advice_lines
from commitments.domain.changeset import ChangeRequest, find_contradictions, net_demand
from commitments.domain.confirmation import requires_confirmation
from commitments.domain.state import CommitmentState
from commitments.domain.statuses import CommitmentStatus, ResourceType, Ruling
from commitments.domain.timeline import counted_cores
from commitments.models import Commitment
from commitments.services.admission import read_cores, read_slots, read_snapshot
from commitments.services.advice import advise_rejection, whole_second_at_or_after
from commitments.services.apply import Application, PlanSpoiled, apply_admission
from commitments.services.commitment_rows import WantedCommitment, make_target
from commitments.services.info import check_info_version
from commitments.services.refusals import keep_refusal
from commitments.services.resolve import (
    StructuralProblem,
    check_names,
    check_retired_groups,
    parsed_resource,
    resolve_changes,
)
from commitments.services.rollback import count_slot_limit_rejections
from core.jobs import ATTEMPTS, tried
from journal.actors import Actor
from journal.clock import database_now
from journal.errors import Busy, InvalidInput, NotReady
from journal.nudges import hint_worker
from journal.outages import UNIQUE_VIOLATION, is_retryable
from journal.tracing import correlation_id

log = structlog.get_logger(__name__)

PROBE_LIFETIME = timedelta(minutes=1)
HTTP_OK = 200
HTTP_UNPROCESSABLE = 422


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeOutcome:
    """The answer to a change request.

    Attributes:
        rejection_reason: Empty when accepted.
        retry_at: When the same request may fit, whole seconds UTC.
        status: HTTP status: 200, or 422 for a structural problem of a non-confirming request.
        is_timeout: Whether the time for the decision ran out.
        rejected: Each commitment that was answered no; empty when the request was as a whole.
    """

    rejection_reason: str = ""
    retry_at: datetime | None = None
    status: int = HTTP_OK
    is_timeout: bool = False
    rejected: tuple[RejectedCommitment, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeContext:
    """What one request is decided with; the clock is read once."""

    request: ChangeRequest
    actor: Actor
    request_id: str
    now: datetime
    may_reject: bool
    deadline_seconds: float
    clock: Callable[[], float]

    @property
    def is_late(self) -> bool:
        """Whether the time for the decision is over."""
        return self.clock() >= self.deadline_seconds


def change_commitments(
    request: ChangeRequest,
    *,
    actor: Actor,
    request_id: str,
    now: datetime | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> ChangeOutcome:
    """Decide a change request, and write it when it is accepted.

    Takes the zone locks of the request and of the zones its commitments were in.

    Args:
        request: The request, well-formed.
        now: The present; the database's when left out.
        clock: Monotonic seconds, for the deadline.

    Raises:
        StaleVersion: the ServiceInfo says something else of its resources than Limes knew.
        InvalidInput: the changeset contradicts itself.
        NotReady: flavor groups were not extracted yet.
        Busy: a lock was not free in time and the request may not be rejected.

    Source: spec liquid, 11; decisions (order of version and semantic checks).
    """
    context = ChangeContext(
        request=request,
        actor=actor,
        request_id=request_id,
        now=now or database_now(),
        may_reject=(request.is_dry_run and not _is_exact()) or requires_confirmation(request),
        deadline_seconds=clock() + settings.HEADROOM.liquid.change_timeout_seconds,
        clock=clock,
    )
    try:
        check_info_version(request.info_version, [name for _, name, _ in request.places()])
    except NotReady:
        if request.is_dry_run:
            return _transient(context, "dry run: caches not ready, please retry later")
        raise
    contradictions = find_contradictions(request)
    if contradictions:
        raise InvalidInput(contradictions[0].message)
    if request.is_dry_run:
        return _decide_dry_run(context)
    outcome = _decide(context)
    if outcome.rejection_reason:
        keep_refusal(request, outcome, actor=actor, request_id=request_id)
    return outcome


def _decide(context: ChangeContext) -> ChangeOutcome:
    try:
        return _decide_resolved(context)
    except StructuralProblem as problem:
        return ChangeOutcome(
            rejection_reason=problem.message,
            status=HTTP_OK if context.may_reject else HTTP_UNPROCESSABLE,
        )


def _decide_resolved(context: ChangeContext) -> ChangeOutcome:
    wanted = resolve_changes(
        context.request, now=context.now, request_id=correlation_id(context.request_id)
    )
    if context.may_reject and context.is_late:
        return _timed_out(context, "no time left before the decision")
    try:
        know_cores(wanted)
        application = _with_attempts(lambda: _plan_and_apply(context, wanted))
    except Busy as busy:
        if not context.may_reject:
            raise
        return _timed_out(context, busy.message)
    except _TooLate as late:
        return _timed_out(context, str(late))
    if application.plan.rejections:
        count_slot_limit_rejections(application.plan)
        advice = _advice(context, application)
        rejected = _rejected_commitments(application.plan, advice)
        return ChangeOutcome(
            rejection_reason=rejection_reason(rejected),
            retry_at=_retry_at(context, application.plan, advice),
            rejected=tuple(rejected),
        )
    return ChangeOutcome()


class _TooLate(Exception):  # noqa: N818 - private signal that rolls the transaction back
    """The deadline passed inside the transaction."""


def _with_attempts(decide: Callable[[], Application]) -> Application:
    """Run a transaction again when somebody spoiled its plan, at most three times."""
    return tried(
        decide,
        again_after=lambda error: (
            isinstance(error, PlanSpoiled) or is_retryable(error, UNIQUE_VIOLATION)
        ),
        event="change_retried",
        given_up=Busy(f"the zone changed {ATTEMPTS} times while the request was decided"),
    )


def _plan_and_apply(context: ChangeContext, wanted: Sequence[WantedCommitment]) -> Application:
    with transaction.atomic(durable=True):
        application = plan_locked(context, wanted)
        if application.plan.rejections:
            transaction.set_rollback(True)
            return application
        if context.may_reject and context.is_late:
            raise _TooLate(f"{len(wanted)} commitment(s) planned, not written")
        apply_admission(application)
        nudge_after_commit(application)
    return application


def plan_locked(context: ChangeContext, wanted: Sequence[WantedCommitment]) -> Application:
    """Lock the zones of a batch and plan it on what is stored then.

    A dry run counts cores that nobody counted yet for itself alone: it must not write.

    Raises:
        Busy: a zone was not free in time.
        PlanSpoiled: a commitment came into a zone that is not locked while the locks were taken.
        StructuralProblem: commitments of a retired group would grow.
    """
    uuids = [item.commitment_uuid for item in wanted]
    stored = Commitment.objects.filter(commitment_uuid__in=uuids).order_by("pk")
    zones = {context.request.zone, *stored.values_list("zone", flat=True)}
    zone_lock(zones)
    rows = {row.commitment_uuid: row for row in stored.all()}
    if any(row.zone not in zones for row in rows.values()):
        raise PlanSpoiled("a commitment changed its zone while the request was decided")
    _log_differences(wanted, rows)
    check_retired_groups(wanted, rows)
    slots = read_slots(list(rows.values()))
    targets = tuple(
        make_target(item, rows.get(item.commitment_uuid), slots.by_commitment, context.now)
        for item in wanted
    )
    snapshot = read_snapshot(
        rooms=slots.rooms,
        cores=read_cores(cores_keys(targets), outside=uuids, now=context.now),
        max_slots=settings.HEADROOM.liquid.max_slots_per_commitment if context.may_reject else 0,
        targets=targets,
    )
    snapshot = replace(
        snapshot, domains=with_told_names(snapshot.domains, context.request.domain_names)
    )
    if context.request.is_dry_run:
        snapshot = replace(snapshot, cores=counted_cores(snapshot, only_unknown=True))
    plan = plan_admission(snapshot, targets, may_reject=context.may_reject, now=context.now)
    return Application(
        plan=plan,
        wanted=tuple(wanted),
        rows=rows,
        rooms=slots.rooms,
        now=context.now,
        actor=context.actor,
        request_id=correlation_id(context.request_id),
    )


def _log_differences(wanted: Sequence[WantedCommitment], rows: Mapping[str, Commitment]) -> None:
    """Log where Limes believes another state than is stored; its request counts all the same.

    Source: spec liquid, 11.3.
    """
    for item in wanted:
        row = rows.get(item.commitment_uuid)
        stored = row.state if row is not None else ""
        if item.believed_state and item.believed_state != stored:
            log.info(
                "commitment_state_differs",
                commitment=item.commitment_uuid,
                stored=stored,
                believed=item.believed_state,
            )


def nudge_after_commit(application: Application) -> None:
    """Start background work that the change calls for, once it is committed."""
    needs_repair = any(d.outcome is Ruling.RESERVING for d in application.plan.decisions)
    transaction.on_commit(lambda: nudge(needs_repair=needs_repair), robust=True)


def know_cores(wanted: Sequence[WantedCommitment]) -> None:
    """Have the cores of the zones counted that a request asks cores of, unless they are known.

    Raises:
        Busy: the zone is being counted for longer than the lock timeout.
    """
    zones = {
        item.state.zone
        for item in wanted
        if item.state is not None and item.state.resource_type is ResourceType.CORES
    }
    for zone in sorted(zones):
        ensure_totals(zone)


def cores_keys(targets: Sequence[CommitmentTarget]) -> set[tuple[str, str]]:
    """Return the (group, zone) pairs whose cores ledger the targets need."""
    return {
        (target.desired.flavor_group_name, target.desired.zone)
        for target in targets
        if target.desired is not None and target.desired.resource_type is ResourceType.CORES
    }


def nudge(*, needs_repair: bool) -> None:
    """Ask the workers to look now instead of at the next beat; carries no domain input."""
    hint_worker("commitments.reconcile_changed_usage")
    if needs_repair:
        hint_worker("commitments.dispatch_due")


def _plan_only(context: ChangeContext, wanted: Sequence[WantedCommitment]) -> Application:
    with transaction.atomic(durable=True):
        application = plan_locked(context, wanted)
        transaction.set_rollback(True)
    return application


def _decide_dry_run(context: ChangeContext) -> ChangeOutcome:
    try:
        return _decide_probes(context)
    except StructuralProblem as problem:
        return ChangeOutcome(rejection_reason=f"dry run: {problem.message}")


def _decide_probes(context: ChangeContext) -> ChangeOutcome:
    check_names(context.request)
    wanted = _probes(context)
    if not wanted:
        return ChangeOutcome()
    if context.is_late:
        return _transient(context, dry_run_timeout_reason(["no time left before the decision"]))
    try:
        application = _with_attempts(lambda: _plan_only(context, wanted))
    except Busy as busy:
        return _transient(context, dry_run_timeout_reason([busy.message]))
    application = _as_far_as_dry_runs_go(application)
    if not application.plan.rejections:
        return ChangeOutcome()
    advice = _advice(context, application)
    return ChangeOutcome(
        rejection_reason=dry_run_reason(_rejected_commitments(application.plan, advice)),
        retry_at=_retry_at(context, application.plan, advice),
    )


def _is_exact() -> bool:
    """Return whether a dry run simulates the changeset and answers as the change itself would."""
    return settings.HEADROOM.liquid.dry_run_mode == "exact"


def _as_far_as_dry_runs_go(application: Application) -> Application:
    """Leave out refusals of resources whose dry runs are not checked (spec liquid, 6.4)."""
    configured = load_group_settings()

    def is_checked(target: CommitmentTarget) -> bool:
        assert target.desired is not None  # noqa: S101 - deletes are never refused
        group_settings = settings_for_group(configured, target.desired.flavor_group_name)
        is_memory = target.desired.resource_type is ResourceType.MEMORY
        return (group_settings.ram if is_memory else group_settings.cores).handles_dry_run

    decisions = application.plan.decisions
    told = tuple(d for d in decisions if d.outcome is not Ruling.REJECTED or is_checked(d.target))
    return replace(application, plan=replace(application.plan, decisions=told))


def _probes(context: ChangeContext) -> tuple[WantedCommitment, ...]:
    """Return what a dry run asks for: one probe per group and type that grows, or everything."""
    if _is_exact():
        return resolve_changes(
            context.request, now=context.now, request_id=correlation_id(context.request_id)
        )
    groups, configured = load_group_definitions(include_retired=True), load_group_settings()
    need: dict[tuple[str, ResourceType], int] = {}
    for resource_name, amount_units in net_demand(context.request):
        group, resource_type = parsed_resource("", resource_name)
        if group not in groups:
            raise StructuralProblem(f"flavor group not found: {group}")
        group_settings = settings_for_group(configured, group)
        is_memory = resource_type is ResourceType.MEMORY
        flags = group_settings.ram if is_memory else group_settings.cores
        if not (flags.handles_commitments and flags.handles_dry_run):
            continue
        amount = amount_units
        if is_memory:
            try:
                amount = declared_units_to_bytes(amount_units, group_settings.ram_unit_mib)
            except UnitError as error:
                raise StructuralProblem(str(error)) from None
        need[group, resource_type] = need.get((group, resource_type), 0) + amount
    if not need:
        return ()
    first_project = min(context.request.by_project)
    domain_id = context.request.by_project[first_project].domain_id
    return tuple(
        WantedCommitment(
            commitment_uuid=f"dryrun-{context.request_id[:8]}-{index}",
            state=CommitmentState(
                commitment_uuid=f"dryrun-{context.request_id[:8]}-{index}",
                project_id=first_project,
                domain_id=domain_id,
                flavor_group_name=group,
                zone=context.request.zone,
                resource_type=resource_type,
                requested_amount=need[group, resource_type],
                status=CommitmentStatus.PENDING,
                start_time=context.now,
                end_time=context.now + PROBE_LIFETIME,
            ),
            allow_rejection=True,
        )
        for index, (group, resource_type) in enumerate(sorted(need))
    )


def _advice(context: ChangeContext, application: Application) -> Advice:
    """Look for what would fit, unless that is switched off or the time is over."""
    if not settings.HEADROOM.liquid.advise_on_rejection or context.is_late:
        return Advice()
    return advise_rejection(
        [decision.target for decision in application.plan.decisions],
        zone=context.request.zone,
        rooms=application.rooms,
        now=context.now,
    )


def _rejected_commitments(plan: AdmissionPlan, advice: Advice) -> list[RejectedCommitment]:
    lines = advice_lines(advice)
    return [
        RejectedCommitment(
            commitment_uuid=d.target.commitment_uuid,
            message=d.message,
            advice=lines.get(d.target.commitment_uuid, ""),
        )
        for d in plan.rejections
    ]


def _retry_at(context: ChangeContext, plan: AdmissionPlan, advice: Advice) -> datetime | None:
    if advice.fit is not None:
        return whole_second_at_or_after(advice.fit.at)
    return retry_at(
        [d.cause.value for d in plan.rejections if d.cause is not None],
        now=context.now,
        after_capacity_seconds=settings.HEADROOM.liquid.retry_after_capacity_seconds,
        after_transient_seconds=settings.HEADROOM.liquid.retry_after_transient_seconds,
    )


def _timed_out(context: ChangeContext, detail: str) -> ChangeOutcome:
    return _transient(context, timeout_reason([detail]))


def _transient(context: ChangeContext, reason: str) -> ChangeOutcome:
    return ChangeOutcome(
        rejection_reason=reason,
        retry_at=retry_at(
            ["transient"],
            now=context.now,
            after_capacity_seconds=settings.HEADROOM.liquid.retry_after_capacity_seconds,
            after_transient_seconds=settings.HEADROOM.liquid.retry_after_transient_seconds,
        ),
        is_timeout="timeout" in reason,
    )
