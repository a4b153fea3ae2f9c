"""Run pipelines of filters and weighers over the host table (spec scheduling, 5.2 and 14.4).

Requests that differ in their key alone share one evaluation, which keeps the surviving hosts and
their scores; after a placement only the row of the chosen host is looked at again, so a batch of
equal slots costs one full evaluation and then a few row updates and one arg-max per slot.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np

from scheduling.columns import BoolColumn
from scheduling.decision import Decision
from scheduling.evaluation import (
    Clock,
    CompiledPipeline,
    Evaluation,
    PipelineRunError,
    StepNotes,
    StepView,
    candidate_mask,
    filter_mask,
)
from scheduling.filters import (
    Filter,
    filter_aggregate_metadata,
    filter_allowed_projects,
    filter_capabilities,
    filter_correct_az,
    filter_external_customer,
    filter_has_accelerators,
    filter_has_enough_capacity,
    filter_has_requested_traits,
    filter_host_instructions,
    filter_status_conditions,
    tenant_classes_open_to,
)
from scheduling.filters.state import filter_takes_slots
from scheduling.free import FreeColumns, free_columns, free_key
from scheduling.request import PlacementRequest, UnplaceableRequestError
from scheduling.table import HostTable
from scheduling.weighers import kvm_binpack

CUSTOMER_DOMAIN_PREFIXES = ("iaas-",)
"""Domains of external customers, as shipped (spec scheduling, 7.8)."""

SLOT_PIPELINE = CompiledPipeline(
    name="slot-bin-packing",
    filters=(
        filter_status_conditions,
        filter_takes_slots,
        filter_correct_az,
        filter_host_instructions,
        filter_capabilities,
        filter_has_requested_traits,
        filter_external_customer(domain_name_prefixes=CUSTOMER_DOMAIN_PREFIXES),
        filter_has_accelerators,
        filter_allowed_projects,
        filter_aggregate_metadata,
        filter_has_enough_capacity,
    ),
    weighers=(kvm_binpack(count_reservations=True),),
    project_key=tenant_classes_open_to,
)
"""Places committed slots tightly, with every filter of VMs that says anything of a slot (spec
scheduling, 7.1, 9.1): one is held only where its project's VM would be allowed. Capacity comes last
so that its count and the largest free room speak of hosts that could be used otherwise."""


def schedule(
    table: HostTable,
    request: PlacementRequest,
    pipeline: CompiledPipeline = SLOT_PIPELINE,
    *,
    max_candidates: int = 3,
) -> Decision:
    """Choose the best host for one request.

    Args:
        pipeline: Filters and weighers to run.
        max_candidates: How many of the best hosts to report; 0 reports all.

    Raises:
        UnplaceableRequestError: If the request asks for no memory or no vCPUs, and for room.

    Source: spec scheduling, 5.2.
    """
    return schedule_many(table, (request,), pipeline, max_candidates=max_candidates)[0]


def schedule_many(
    table: HostTable,
    requests: Sequence[PlacementRequest],
    pipeline: CompiledPipeline = SLOT_PIPELINE,
    *,
    max_candidates: int = 1,
) -> tuple[Decision, ...]:
    """Choose hosts for requests one after the other, each seeing the blocks of those before.

    A placed request blocks its size for all later ones, whatever kinds of reservations they
    ignore, and counts as a member of its server group. A request that fits nowhere, or that a step
    fails, gets a decision without host and blocks nothing; whether the batch then fails as a whole
    is the caller's business.

    Args:
        table: Hosts before the first request.
        requests: Requests in the order in which they are served.
        pipeline: Filters and weighers to run.
        max_candidates: How many of the best hosts to report per request; 0 reports all.

    Returns:
        One decision for each request, in their order.

    Raises:
        UnplaceableRequestError: If a request asks for no memory or no vCPUs, and for room.

    Source: spec scheduling, 14.4 (batch API).
    """
    for request in requests:
        check_placeable(request, pipeline)
    batch = Batch(table_for(table, requests, pipeline), pipeline)
    return tuple(batch.decide(request, max_candidates) for request in requests)


def check_placeable(request: PlacementRequest, pipeline: CompiledPipeline) -> None:
    """Check that a request asks for memory and vCPUs if the pipeline looks at room.

    Raises:
        UnplaceableRequestError: If it does not.
    """
    asks_for_room = any(step.measures_room for step in pipeline.filters)
    if asks_for_room and not (request.memory_bytes and request.vcpus):
        raise UnplaceableRequestError(request.request_key)


def table_for(
    table: HostTable, requests: Sequence[PlacementRequest], pipeline: CompiledPipeline
) -> HostTable:
    """Return the table with a row for every host that a request names as its candidate."""
    if pipeline.ignore_preselection:
        return table
    for request in requests:
        table = table.with_unknown(request.hosts or ())
    return table


def passing_hosts(
    table: HostTable, request: PlacementRequest, pipeline: CompiledPipeline = SLOT_PIPELINE
) -> BoolColumn:
    """Return bool[N], true for the hosts that pass every filter of the pipeline.

    Raises:
        PipelineRunError: If a step fails the request.
    """
    passing = candidate_mask(table, request, ignore_preselection=pipeline.ignore_preselection)
    notes = StepNotes()
    for view in step_views(table, request, pipeline):
        passing &= filter_mask(table, view, notes)
    return passing


def step_views(
    table: HostTable, request: PlacementRequest, pipeline: CompiledPipeline
) -> tuple[StepView, ...]:
    """Return what each filter sees of a request that stands alone."""
    return Batch(table, pipeline).views(request)


class Batch:
    """Free columns and evaluations of one run; the only mutable state, gone when the run ends."""

    def __init__(
        self, table: HostTable, pipeline: CompiledPipeline, *, clock: Clock | None = None
    ) -> None:
        self._clock = clock
        self._table = table
        self._pipeline = pipeline
        self._free: dict[Hashable, FreeColumns] = {}
        self._evaluations: dict[Hashable, Evaluation] = {}
        self._placed: list[tuple[int, PlacementRequest]] = []
        self._placed_rows: dict[str, tuple[int, ...]] = {}

    def decide(
        self, request: PlacementRequest, max_candidates: int, *, only_row: int | None = None
    ) -> Decision:
        """Choose a host for a request and place it there.

        Args:
            max_candidates: How many of the best hosts to report; 0 reports all.
            only_row: Row of the one host that it may be placed on; None leaves the choice.
        """
        try:
            evaluation = self.evaluation(request)
        except PipelineRunError as problem:
            return Decision(
                request=request,
                pipeline=self._pipeline.name,
                host_name=None,
                host_id=None,
                top=(),
                removals=(),
                candidates_in=0,
                closest=None,
                failure=str(problem),
            )
        if only_row is None:
            rows = evaluation.best_rows(request.request_key, max_candidates)
        else:
            rows = [only_row] if evaluation.survivors()[only_row] else []
        if rows:
            self.place(rows[0], request)
        top = tuple(evaluation.candidate(row) for row in rows)
        return Decision(
            request=request,
            pipeline=self._pipeline.name,
            host_name=top[0].host_name if top else None,
            host_id=top[0].host_id if top else None,
            top=top,
            removals=evaluation.removals,
            candidates_in=int(np.count_nonzero(evaluation.candidates)),
            closest=None if top else evaluation.closest(),
        )

    def evaluation(self, request: PlacementRequest) -> Evaluation:
        """Return the evaluation of a request, up to date with what was placed.

        Raises:
            PipelineRunError: If a step fails the request.
        """
        key = self._shape_key(request)
        evaluation = self._evaluations.get(key)
        if evaluation is None:
            views = self.views(request)
            measuring = [view.free for view in views if view.step.measures_room]
            evaluation = Evaluation(
                table=self._table,
                pipeline=self._pipeline,
                request=request,
                views=views,
                free=measuring[-1] if measuring else self._free_columns(request),
                placed_count=len(self._placed),
                clock=self._clock,
            )
            self._evaluations[key] = evaluation
        else:
            evaluation.catch_up(self._placed)
        return evaluation

    def views(self, request: PlacementRequest) -> tuple[StepView, ...]:
        """Return what each filter sees of a request."""
        free = self._free_columns(request)
        return tuple(self._view(step, request, free) for step in self._pipeline.filters)

    def _view(self, step: Filter, request: PlacementRequest, free: FreeColumns) -> StepView:
        if step.adapt is None:
            return StepView(step=step, request=request, free=free)
        adapted = step.adapt(request)
        return StepView(step=step, request=adapted, free=self._free_columns(adapted))

    def _free_columns(self, request: PlacementRequest) -> FreeColumns:
        key = free_key(self._table, request)
        free = self._free.get(key)
        if free is None:
            fresh = free_columns(self._table, request)
            free = FreeColumns(
                memory_bytes=fresh.memory_bytes,
                vcpus=fresh.vcpus,
                placed=self._placed_rows,
                others=fresh.others,
            )
            for row, placed in self._placed:
                _take(free, row, placed)
            self._free[key] = free
        return free

    @property
    def placed(self) -> Sequence[tuple[int, PlacementRequest]]:
        """Rows and requests that were placed so far, in order."""
        return self._placed

    def place(self, row: int, request: PlacementRequest) -> None:
        """Count a request as placed on the host of a row, as :meth:`decide` does with the best."""
        for free in self._free.values():
            _take(free, row, request)
        self._placed.append((row, request))
        before = self._placed_rows.get(request.request_key, ())
        self._placed_rows[request.request_key] = (*before, row)

    def _shape_key(self, request: PlacementRequest) -> Hashable:
        """Return what a request's evaluation depends on besides the table and what was placed."""
        return (
            request.memory_bytes,
            request.vcpus,
            request.zone,
            request.project_id
            if self._pipeline.project_key is None
            else self._pipeline.project_key(self._table, request),
            request.hypervisor_type,
            request.required_traits,
            request.forbidden_traits,
            request.ignore_hosts,
            request.force_hosts,
            request.ignored_kinds,
            request.assume_empty_hosts,
            request.lock_reservations,
            request.intent,
            request.num_instances,
            request.flavor_group,
            tuple(sorted(request.extra_specs.items())) if request.extra_specs else (),
            request.domain_name,
            request.domain_is_unresolved,
            request.source_host,
            request.resource_group,
            request.requested_destination,
            None if request.restrict_to_hosts is request.hosts else request.restrict_to_hosts,
            # large or not hashable: shared when they are the same object, which the batch holds
            id(request.image_properties),
            id(request.hosts),
            id(request.weights),
            id(request.quota),
            request.needs,
            free_key(self._table, request),
            self._group_key(request),
        )

    def _group_key(self, request: PlacementRequest) -> Hashable:
        group = request.instance_group
        if group is None:
            return None
        placed = tuple(
            (member, self._placed_rows[member])
            for member in sorted(group.members)
            if member in self._placed_rows
        )
        runs_already = bool(self._table.instance_index.rows_of(request.request_key))
        return (group, placed, request.request_key if runs_already else None)


def _take(free: FreeColumns, row: int, request: PlacementRequest) -> None:
    asked = request.asked
    free.memory_bytes[row] -= asked.memory_bytes
    free.vcpus[row] -= asked.vcpus
    if free.others is not None:
        free.others[row] -= np.array(request.needs, dtype=np.int64)
