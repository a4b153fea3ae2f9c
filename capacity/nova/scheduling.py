"""One scheduling run from request to answer: the entry of the endpoint and of all callers.

Snapshot, engine, placement, slot tracking, decision record, metrics, in this order (scheduling, 5,
12, 16.2). A read-only run stops after the engine: it writes nothing and holds nothing.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from uuid import UUID

import structlog
from django.conf import settings

from capacity.groups.reading import GROUPS
from capacity.hooks import TrackedPlacement, hooks
from capacity.host_table import HostTableReading, read_host_table
from capacity.ledger.in_flight_end import INTENTS_WITHOUT_VM, UNKNOWN_INTENT
from capacity.metrics import scheduling as metrics
from capacity.nova.in_flight import InFlightHold
from capacity.nova.nova_call import planned_first, shuffled_top
from capacity.nova.pipelines import PIPELINES, ActivePipeline, active_pipelines
from capacity.nova.placement import SPARE_CANDIDATES, Choice, ask_of, place_vm
from capacity.nova.quota_facts import with_quota_facts
from capacity.nova.run_records import FinishedRun, hosts_in, hosts_out, keep_run
from capacity.nova.slot_tracking import (
    is_tracked,
    resolved_group,
    track_placement,
    track_refusal,
)
from capacity.nova.step_metrics import observe_steps
from core.process_cache import Fingerprint, read_fingerprints
from hosts.models import Instance
from journal.actors import Actor
from journal.clock import database_now
from journal.errors import HeadroomError, InvalidInput
from scheduling.evaluation import PipelineRunError, check_gatherable
from scheduling.intents import CallOptions, Intent, PlacedVM, inferred_intent
from scheduling.record import DecisionRecord, record_run
from scheduling.request import PlacementRequest, UnplaceableRequestError
from scheduling.table import HostTable

log = structlog.get_logger(__name__)


class UnknownPipeline(HeadroomError):  # noqa: N818 - names the caller's mistake
    """No usable pipeline has the name that a request gives."""

    code = "unknown_pipeline"
    status = 404


class RunFailed(InvalidInput):
    """A step that must judge could not judge the request (spec scheduling, 15.1)."""

    code = "scheduling_run_failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulingResult:
    """What a run decided and what came of it.

    Attributes:
        decision: What every step did.
        host_names: Hosts of the answer, best first: those held, when the run holds any.
        outcome_class: Class of commitment tracking (spec scheduling, 12), empty when none applies.
        flavor_group: Flavor group of the VM, empty when its flavor is in none.
        placement_id: Shared by the in-flight reservations of the run; None without any.
    """

    decision: DecisionRecord
    host_names: tuple[str, ...]
    outcome_class: str = ""
    flavor_group: str = ""
    placement_id: UUID | None = None


@dataclass(slots=True, kw_only=True)
class _Run:
    """A run under way; the only mutable state, gone when it ends."""

    request: PlacementRequest
    pipeline: ActivePipeline
    options: CallOptions
    actor: Actor
    request_id: str
    group: str = ""
    is_group_known: bool = True
    reading: HostTableReading | None = None
    table: HostTable | None = None
    snapshot: str = ""
    record: DecisionRecord | None = None
    engine_seconds: float = 0.0
    host_names: tuple[str, ...] = ()
    placement_id: UUID | None = None
    outcome_class: str = ""
    planned_host: str = ""
    started: float = field(default_factory=time.perf_counter)

    @property
    def intent(self) -> str:
        """Label of what the run is for."""
        intent = self.request.intent
        return UNKNOWN_INTENT if intent is None else intent.value

    @property
    def concerns_vm(self) -> bool:
        """Whether the run brings a VM: neither a probe, nor for a reservation, nor read-only."""
        return self.intent not in INTENTS_WITHOUT_VM and not self.options.read_only

    @property
    def holds(self) -> bool:
        """Whether hosts are held for the VM."""
        return (
            self.concerns_vm and not self.options.skip_inflight and bool(self.request.request_key)
        )

    @property
    def is_tracked(self) -> bool:
        """Whether commitments are to hear of the outcome (spec scheduling, 12)."""
        return settings.HEADROOM.scheduler.committed_resource_tracking and self.concerns_vm

    @property
    def tracked(self) -> TrackedPlacement:
        """The VM as commitments see it: one, however many are asked for (spec scheduling, 12.1)."""
        return TrackedPlacement(
            vm_uuid=self.request.request_key,
            project_id=self.request.project_id,
            group=self.group,
            zone=self.request.zone,
            resources=self.request.one_vm,
        )

    def preferred(self, hosts: Sequence[str]) -> tuple[str, ...]:
        """Return hosts with the one that an evacuation plan names first, if it passed."""
        return planned_first(hosts, self.planned_host)

    def answer(self, hosts: Sequence[str]) -> tuple[str, ...]:
        """Return hosts in the order of the answer (spec scheduling, 2.6 step 2).

        A host that an evacuation plan names needs no shuffling: no other VM is sent to its slot.
        """
        if self.request.intent is not Intent.EVACUATE:
            return tuple(hosts)
        if self.planned_host in hosts:
            return self.preferred(hosts)
        assert self.record is not None  # noqa: S101 - _choose sets it
        first = set(self.record.ordered_hosts[: self.record.preferred])
        return shuffled_top(
            hosts,
            settings.HEADROOM.scheduler.evacuation_shuffle_k,
            seed=self.request.request_key,
            preferred=sum(host in first for host in hosts),
        )


def run_scheduling(
    request: PlacementRequest,
    *,
    pipeline_name: str,
    options: CallOptions,
    actor: Actor,
    request_id: str,
) -> SchedulingResult:
    """Choose hosts for a request, hold them, track the slot, record the decision, count it.

    Args:
        request: What is asked, with the caller's hosts and weights.
        pipeline_name: Which pipeline runs.
        options: Call-time options.

    Raises:
        InvalidInput: the options contradict each other, or the request asks for nothing.
        UnknownPipeline: no usable pipeline has this name.
        RunFailed: a step that must judge could not.
        Busy: the hosts stayed locked by others.

    Source: spec scheduling, 5, 12, 16.2.
    """
    reading = read_host_table(PIPELINES, GROUPS)
    prepared = prepared_request(
        request, pipeline_name=pipeline_name, options=options, asked=reading.fingerprints
    )
    known = prepared.request
    run = _Run(
        reading=reading,
        request=known,
        pipeline=prepared.pipeline,
        options=options,
        actor=actor,
        request_id=request_id,
        group=known.flavor_group,
        is_group_known=prepared.is_group_known,
    )
    if run.concerns_vm and known.intent is Intent.EVACUATE and known.request_key:
        run.planned_host = hooks.evacuation_guide.planned_host(known.request_key)
    record = _choose(run)
    if record.failure:
        _finish(run, message=record.failure)
        raise RunFailed(record.failure)
    if run.holds:
        message = _place(run)
    else:
        most = run.options.max_candidates or None
        run.host_names = run.answer(record.ordered_hosts)[:most]
        message = ""
        _track_unheld(run)
    if not run.host_names and run.is_tracked:
        _refuse(run)
    _finish(run, message=message)
    assert run.record is not None  # noqa: S101 - _choose sets it
    return SchedulingResult(
        decision=run.record,
        host_names=run.host_names,
        outcome_class=run.outcome_class,
        flavor_group=run.group,
        placement_id=run.placement_id,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedRequest:
    """A request with what only rows know, and the pipeline that it names.

    Attributes:
        request: With its flavor group, if it is in one, and quota facts.
        pipeline: What runs.
        is_group_known: Whether flavor groups could be looked up.
    """

    request: PlacementRequest
    pipeline: ActivePipeline
    is_group_known: bool


def prepared_request(
    request: PlacementRequest,
    *,
    pipeline_name: str,
    options: CallOptions,
    asked: Sequence[Fingerprint] = (),
) -> PreparedRequest:
    """Return a request with what only rows know, and the pipeline that it names.

    Flavor group and quota facts are looked up; nothing is written.

    Args:
        pipeline_name: Which pipeline runs.
        options: Call-time options.
        asked: What the rows of pipelines and groups were just said to be.

    Raises:
        InvalidInput: the options contradict each other, or candidates cannot be gathered.
        UnknownPipeline: no usable pipeline has this name.
    """
    problem = options.problem()
    if problem:
        raise InvalidInput(f"invalid options: {problem}", code="invalid_options")
    pipelines, groups = asked or read_fingerprints(PIPELINES, GROUPS)
    pipeline = active_pipelines(pipelines).get(pipeline_name)
    if pipeline is None:
        raise UnknownPipeline(f"no usable pipeline is named {pipeline_name!r}")
    if pipeline.ignore_preselection:
        try:
            check_gatherable(request)
        except PipelineRunError as error:
            raise InvalidInput(f"candidates cannot be gathered: {error}") from None
    request = with_intent(request)
    group = resolved_group(request, groups)
    known = request if group == request.flavor_group else replace(request, flavor_group=group or "")
    return PreparedRequest(
        request=with_quota_facts(known, pipeline.pipeline),
        pipeline=pipeline,
        is_group_known=group is not None,
    )


def with_intent(request: PlacementRequest) -> PlacementRequest:
    """Return a request that does not say what it is for with what its VM lets infer."""
    if request.intent is not None:
        return request
    placed = Instance.objects.filter(openstack_id=request.request_key, host__isnull=False)
    row = placed.values_list("flavor_name", "host__name", "host__is_lost").first()
    vm = None
    if row is not None:
        flavor, host, is_lost = row
        vm = PlacedVM(flavor_name=flavor, host_name=host, is_host_lost=is_lost)
    intent, reason = inferred_intent(vm, request.flavor_name)
    return replace(request, intent=intent, intent_reason=reason)


def _choose(run: _Run) -> DecisionRecord:
    """Run the engine on the newest snapshot, for a few more hosts than wanted if they are held.

    The first time that is the one which was read with what the request was prepared by.
    """
    reading, run.reading = run.reading or read_host_table(), None
    table, run.table, run.snapshot = reading.table, reading.table, reading.snapshot
    options = run.options
    if run.planned_host:  # which may rank anywhere
        options = replace(options, max_candidates=0)
    elif run.holds and options.max_candidates:
        options = replace(options, max_candidates=options.max_candidates + SPARE_CANDIDATES)
    started = time.perf_counter()
    try:
        run.record = record_run(
            table, run.request, run.pipeline.pipeline, options, clock=time.perf_counter
        )
    except UnplaceableRequestError as error:
        raise InvalidInput(str(error), code="unplaceable_request") from None
    run.engine_seconds = time.perf_counter() - started
    return run.record


def _place(run: _Run) -> str:
    """Hold the hosts and book the slot in one transaction; return why nothing was held."""
    assert run.record is not None  # noqa: S101 - _choose sets it
    if not run.record.ordered_hosts:
        return ""

    def choice() -> Choice:
        assert run.record is not None  # noqa: S101 - _choose sets it
        hosts = run.preferred(run.record.ordered_hosts)
        return Choice(host_names=hosts, snapshot=run.snapshot)

    def choose_again() -> Choice:
        _choose(run)
        return choice()

    def book(hold: InFlightHold) -> None:
        run.host_names = run.answer(hold.host_names)
        _track_held(run, now=hold.start_time)

    outcome = place_vm(
        ask_of(run.request, flavor_group=run.group),
        candidates=choice(),
        actor=run.actor,
        request_id=run.request_id,
        choose_again=choose_again,
        max_held=run.options.max_candidates,
        book=book if _is_booked(run) else None,
    )
    run.placement_id = outcome.placement_id
    if outcome.held:
        run.host_names = run.answer(outcome.held)
        return ""
    run.host_names, run.outcome_class = (), ""
    count = len(outcome.refused)
    return f"{count} hosts passed every filter but were taken by others or changed meanwhile"


def _is_booked(run: _Run) -> bool:
    """Return whether commitments hear of the hosts that hold the VM."""
    if not run.is_tracked or run.options.skip_committed_resource_tracking:
        return False
    return is_tracked(run.tracked, is_group_known=run.is_group_known)


def _track_held(run: _Run, *, now: datetime) -> None:
    if _is_booked(run):
        run.outcome_class = track_placement(
            run.tracked,
            is_group_known=run.is_group_known,
            candidates=run.host_names,
            now=now,
        )


def _track_unheld(run: _Run) -> None:
    """Book the slot of a VM that no in-flight row holds, in a transaction of its own."""
    if run.host_names and not run.options.read_only:
        _track_held(run, now=database_now())


def _refuse(run: _Run) -> None:
    assert run.record is not None  # noqa: S101 - _choose sets it
    names, candidates = run.record.names, run.record.candidates
    run.outcome_class = track_refusal(
        run.tracked,
        is_group_known=run.is_group_known,
        input_hosts=(
            None
            if run.pipeline.ignore_preselection
            else [names[row] for row in candidates.rows().tolist()]
        ),
    )


def _finish(run: _Run, *, message: str) -> None:
    """Record the decision and count it."""
    assert run.record is not None  # noqa: S101 - _choose sets it
    seconds = time.perf_counter() - run.started
    outcome = FinishedRun(
        record=run.record,
        host_names=run.host_names,
        message=message,
        outcome_class=run.outcome_class,
        flavor_group=run.group,
        request_id=run.request_id,
        duration_microseconds=int(seconds * 1_000_000),
    )
    if run.pipeline.create_history and not (run.options.skip_history or run.options.read_only):
        keep_run(outcome)
    _count(run)
    log.info(
        "scheduling_run",
        pipeline=run.pipeline.name,
        vm_uuid=run.request.request_key,
        project_id=run.request.project_id,
        flavor=run.request.flavor_name,
        intent=run.intent,
        zone=run.request.zone,
        hosts_out=len(run.host_names),
        target=run.host_names[0] if run.host_names else None,
        outcome=run.outcome_class,
        failure=run.record.failure or message,
        duration_ms=round(seconds * 1000, 3),
    )


def _count(run: _Run) -> None:
    record = run.record
    assert record is not None  # noqa: S101 - _choose sets it
    metrics.observe_run(
        run.pipeline.name,
        seconds=run.engine_seconds,
        hosts_in=hosts_in(record),
        hosts_out=hosts_out(record),
    )
    if run.table is not None:
        observe_steps(run.table, run.pipeline.name, record)
    if run.outcome_class:
        group = run.group if run.is_group_known else "unknown"
        counter = metrics.PLACEMENTS if run.host_names else metrics.NO_HOST_FOUND
        counter.labels(flavor_group=group, intent=run.intent, cr_slot=run.outcome_class).inc()
