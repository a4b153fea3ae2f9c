"""Run pipelines of filters and weighers over the host table (spec scheduling, 5.2 and 14.4).

Requests that differ in their key alone share one *shape*. A shape keeps the surviving hosts and
their scores; after a placement only the row of the chosen host is looked at again, so a batch of
equal slots costs one full evaluation and then a few row updates and one arg-max per slot.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np

from scheduling.decision import Candidate, ClosestHost, Decision, StepRemoval, explain_removals
from scheduling.filters import (
    Filter,
    FreeColumns,
    Rows,
    filter_allowed_projects,
    filter_capabilities,
    filter_correct_az,
    filter_has_enough_capacity,
    filter_has_requested_traits,
    filter_host_instructions,
    filter_status_conditions,
    free_columns,
)
from scheduling.request import PlacementRequest, UnplaceableRequestError
from scheduling.resources import ResourceVector
from scheduling.table import BoolColumn, FloatColumn, HostTable, Int64Column
from scheduling.weighers import Weigher, kvm_binpack, tie_break_hashes

__all__ = [
    "SLOT_PIPELINE",
    "Candidate",
    "ClosestHost",
    "Decision",
    "Pipeline",
    "StepRemoval",
    "explain_removals",
    "passing_hosts",
    "schedule",
    "schedule_many",
]

_MASK_CACHE_LIMIT = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """An ordered choice of filters and weighers.

    Attributes:
        name: Stable name.
        filters: Filters in declared order. The order decides which step a removed host is counted
            for, never which hosts survive.
        weighers: Weighers; their contributions are added in this order.
    """

    name: str
    filters: tuple[Filter, ...]
    weighers: tuple[Weigher, ...]


SLOT_PIPELINE = Pipeline(
    name="slot-bin-packing",
    filters=(
        filter_status_conditions,
        filter_correct_az,
        filter_host_instructions,
        filter_capabilities,
        filter_has_requested_traits,
        filter_allowed_projects,
        filter_has_enough_capacity,
    ),
    weighers=(kvm_binpack(count_reservations=True),),
)
"""Places committed slots tightly. Capacity comes last so that its count and the largest free room
speak of hosts that the request could otherwise use."""


def schedule(
    table: HostTable,
    request: PlacementRequest,
    pipeline: Pipeline = SLOT_PIPELINE,
    *,
    max_candidates: int = 3,
) -> Decision:
    """Choose the best host for one request.

    Args:
        table: Hosts.
        request: What is asked.
        pipeline: Filters and weighers to run.
        max_candidates: How many of the best hosts to report; 0 reports all.

    Raises:
        UnplaceableRequestError: If the request asks for no memory or no vCPUs.

    Source: spec scheduling, 5.2.
    """
    return schedule_many(table, (request,), pipeline, max_candidates=max_candidates)[0]


def schedule_many(
    table: HostTable,
    requests: Sequence[PlacementRequest],
    pipeline: Pipeline = SLOT_PIPELINE,
    *,
    max_candidates: int = 1,
) -> tuple[Decision, ...]:
    """Choose hosts for requests one after the other, each seeing the blocks of those before.

    A placed request blocks its size for all later ones, whatever kinds of reservations they
    ignore. A request that fits nowhere gets a decision without host and blocks nothing; whether the
    batch then fails as a whole is the caller's business.

    Args:
        table: Hosts before the first request.
        requests: Requests in the order in which they are served.
        pipeline: Filters and weighers to run.
        max_candidates: How many of the best hosts to report per request; 0 reports all.

    Returns:
        One decision for each request, in their order.

    Raises:
        UnplaceableRequestError: If a request asks for no memory or no vCPUs.

    Source: spec scheduling, 14.4 (batch API).
    """
    for request in requests:
        if not request.memory_bytes or not request.vcpus:
            raise UnplaceableRequestError(request.request_key)
    batch = _Batch(table, pipeline)
    return tuple(batch.decide(request, max_candidates) for request in requests)


def passing_hosts(
    table: HostTable, request: PlacementRequest, pipeline: Pipeline = SLOT_PIPELINE
) -> BoolColumn:
    """Return bool[N], true for the hosts that pass every filter of the pipeline."""
    free = free_columns(table, request)
    passing = np.ones(len(table), dtype=np.bool_)
    for step in pipeline.filters:
        static_mask = _static_mask(table, step, request, free)
        passing &= step.mask(table, request, free) if static_mask is None else static_mask
    return passing


def _static_mask(
    table: HostTable, step: Filter, request: PlacementRequest, free: FreeColumns
) -> BoolColumn | None:
    """Return the cached mask of a static filter, None for a filter that needs free columns."""
    if step.static_key is None:
        return None
    key = (step.name, step.static_key(table, request))
    mask = table.mask_cache.get(key)
    if mask is None:
        mask = step.mask(table, request, free)
        mask.flags.writeable = False
        if len(table.mask_cache) >= _MASK_CACHE_LIMIT:
            table.mask_cache.clear()
        table.mask_cache[key] = mask
    return mask


class _Batch:
    """Free columns and shapes of one run; the only mutable state, gone when the run ends."""

    def __init__(self, table: HostTable, pipeline: Pipeline) -> None:
        self._table = table
        self._pipeline = pipeline
        self._free: dict[Hashable, FreeColumns] = {}
        self._shapes: dict[Hashable, _Shape] = {}
        self._placed: list[tuple[int, PlacementRequest]] = []

    def decide(self, request: PlacementRequest, max_candidates: int) -> Decision:
        shape = self._shape(request)
        shape.catch_up(self._placed)
        rows = shape.best_rows(request.request_key, max_candidates)
        if rows:
            self._place(rows[0], request)
        top = tuple(shape.candidate(row) for row in rows)
        return Decision(
            request=request,
            pipeline=self._pipeline.name,
            host_name=top[0].host_name if top else None,
            host_id=top[0].host_id if top else None,
            top=top,
            removals=shape.removals,
            candidates_in=len(self._table),
            closest=None if top else shape.closest(),
        )

    def _shape(self, request: PlacementRequest) -> _Shape:
        key = _shape_key(request)
        shape = self._shapes.get(key)
        if shape is None:
            free = self._free_columns(request)
            shape = _Shape(self._table, self._pipeline, request, free, len(self._placed))
            self._shapes[key] = shape
        return shape

    def _free_columns(self, request: PlacementRequest) -> FreeColumns:
        key = (request.ignored_kinds, request.assume_empty_hosts)
        free = self._free.get(key)
        if free is None:
            free = free_columns(self._table, request)
            for row, placed in self._placed:
                _take(free, row, placed)
            self._free[key] = free
        return free

    def _place(self, row: int, request: PlacementRequest) -> None:
        for free in self._free.values():
            _take(free, row, request)
        self._placed.append((row, request))


def _take(free: FreeColumns, row: int, request: PlacementRequest) -> None:
    free.memory_bytes[row] -= request.memory_bytes
    free.vcpus[row] -= request.vcpus


def _shape_key(request: PlacementRequest) -> Hashable:
    return (
        request.memory_bytes,
        request.vcpus,
        request.zone,
        request.project_id,
        request.hypervisor_type,
        request.required_traits,
        request.forbidden_traits,
        request.ignore_hosts,
        request.force_hosts,
        request.ignored_kinds,
        request.assume_empty_hosts,
    )


class _Shape:
    """Surviving hosts and scores for all requests that differ in their key alone."""

    def __init__(
        self,
        table: HostTable,
        pipeline: Pipeline,
        request: PlacementRequest,
        free: FreeColumns,
        placed_count: int,
    ) -> None:
        self._table = table
        self._pipeline = pipeline
        self._request = request
        self._free = free
        self._placed_seen = placed_count
        self._is_row_local = all(weigher.is_row_local for weigher in pipeline.weighers)
        self._static_masks = [_static_mask(table, step, request, free) for step in pipeline.filters]
        self._first_dynamic = next(
            (index for index, mask in enumerate(self._static_masks) if mask is None),
            len(pipeline.filters),
        )
        self._passed: list[BoolColumn] = []
        self._remaining: list[int] = []
        self._evaluate_filters()
        self._scores: FloatColumn = np.full(len(table), -np.inf)
        self._contributions: list[FloatColumn] = [
            np.zeros(len(table), dtype=np.float64) for _ in pipeline.weighers
        ]
        self._weigh_survivors()
        self.removals = self._counted()
        self._closest: ClosestHost | None = None

    def catch_up(self, placed: Sequence[tuple[int, PlacementRequest]]) -> None:
        """Look again at the rows that were placed on since the last look."""
        if self._placed_seen == len(placed):
            return
        touched = sorted({row for row, _ in placed[self._placed_seen :]})
        self._placed_seen = len(placed)
        self._closest = None
        if len(touched) == 1:
            self._look_again(slice(touched[0], touched[0] + 1))
        else:
            self._look_again(np.array(touched, dtype=np.int64))

    def best_rows(self, request_key: str, max_candidates: int) -> list[int]:
        """Return the best rows in order: score, then tie-break hash, then name."""
        scores = self._scores
        if max_candidates == 1 and len(scores):
            row = int(scores.argmax())
            if scores[row] == -np.inf:
                return []
            rows: Int64Column = np.flatnonzero(scores == scores[row])
            if len(rows) == 1:
                return [row]
        else:
            rows = np.flatnonzero(scores > -np.inf)
        return self._ordered(rows, request_key, max_candidates or len(rows))

    def candidate(self, row: int) -> Candidate:
        """Describe one row."""
        weighers = self._pipeline.weighers
        return Candidate(
            host_name=self._table.names[row],
            host_id=int(self._table.host_ids[row]),
            score=float(self._scores[row]),
            contributions=tuple(
                (weigher.name, float(column[row]))
                for weigher, column in zip(weighers, self._contributions, strict=True)
            ),
        )

    def closest(self) -> ClosestHost | None:
        """Return the host nearest to having room among those that pass the static filters."""
        if self._closest is None:
            self._closest = self._find_closest()
        return self._closest

    def _evaluate_filters(self) -> None:
        passed = np.ones(len(self._table), dtype=np.bool_)
        for step, static_mask in zip(self._pipeline.filters, self._static_masks, strict=True):
            mask = static_mask
            if mask is None:
                mask = step.mask(self._table, self._request, self._free)
            passed = passed & mask
            self._passed.append(passed)
            self._remaining.append(int(np.count_nonzero(passed)))

    def _look_again(self, rows: Rows) -> None:
        free = FreeColumns(
            memory_bytes=self._free.memory_bytes[rows], vcpus=self._free.vcpus[rows], rows=rows
        )
        passed = np.ones(len(free.vcpus), dtype=np.bool_)
        if self._first_dynamic:
            passed = self._passed[self._first_dynamic - 1][rows]
        has_changed = False
        for index in range(self._first_dynamic, len(self._passed)):
            mask = self._static_masks[index]
            if mask is None:
                passed = passed & self._pipeline.filters[index].mask(
                    self._table, self._request, free
                )
            else:
                passed = passed & mask[rows]
            column = self._passed[index]
            change = int(np.count_nonzero(passed)) - int(np.count_nonzero(column[rows]))
            if change:
                self._remaining[index] += change
                has_changed = True
            column[rows] = passed
        if has_changed:
            self.removals = self._counted()
        if self._is_row_local:
            self._weigh(free, passed)
        else:
            self._scores.fill(-np.inf)
            self._weigh_survivors()

    def _weigh_survivors(self) -> None:
        if not self._passed:
            self._weigh(self._free, np.ones(len(self._table), dtype=np.bool_))
            return
        rows = np.flatnonzero(self._passed[-1])
        free = FreeColumns(
            memory_bytes=self._free.memory_bytes[rows], vcpus=self._free.vcpus[rows], rows=rows
        )
        self._weigh(free, np.ones(len(rows), dtype=np.bool_))

    def _weigh(self, free: FreeColumns, survives: BoolColumn) -> None:
        total: FloatColumn = np.zeros(len(survives), dtype=np.float64)
        for weigher, column in zip(self._pipeline.weighers, self._contributions, strict=True):
            activation = weigher.activation(self._table, self._request, free)
            contribution = weigher.multiplier * np.tanh(activation)
            column[free.rows] = contribution
            total += contribution
        self._scores[free.rows] = np.where(survives, total, -np.inf)

    def _counted(self) -> tuple[StepRemoval, ...]:
        before = [len(self._table), *self._remaining]
        return tuple(
            StepRemoval(step=step.name, removed=before[index] - remaining, remaining=remaining)
            for index, (step, remaining) in enumerate(
                zip(self._pipeline.filters, self._remaining, strict=True)
            )
        )

    def _ordered(self, rows: Int64Column, request_key: str, count: int) -> list[int]:
        hashes = tie_break_hashes(self._table.name_hashes[rows], request_key)
        scores = self._scores[rows]
        if len(rows) > count:
            worst_kept = np.partition(scores, len(rows) - count)[len(rows) - count]
            is_better = scores > worst_kept
            is_tied = scores == worst_kept
            wanted = count - int(np.count_nonzero(is_better))
            last_hash = np.partition(hashes[is_tied], wanted - 1)[wanted - 1]
            kept = is_better | (is_tied & (hashes <= last_hash))
            rows, scores, hashes = rows[kept], scores[kept], hashes[kept]
        names = self._table.names
        ranked = sorted(
            (-score, tie_break, names[row], row)
            for score, tie_break, row in zip(
                scores.tolist(), hashes.tolist(), rows.tolist(), strict=True
            )
        )
        return [row for _, _, _, row in ranked[:count]]

    def _find_closest(self) -> ClosestHost | None:
        passing = np.ones(len(self._table), dtype=np.bool_)
        for mask in self._static_masks:
            if mask is not None:
                passing = passing & mask
        rows = np.flatnonzero(passing)
        if not len(rows):
            return None
        share = np.minimum(
            self._free.memory_bytes[rows] / self._request.memory_bytes,
            self._free.vcpus[rows] / self._request.vcpus,
        )
        tied = rows[share == share.max()].tolist()
        row = min(tied, key=lambda index: self._table.names[index])
        return ClosestHost(
            host_name=self._table.names[row],
            host_id=int(self._table.host_ids[row]),
            free=ResourceVector(
                memory_bytes=int(self._free.memory_bytes[row]), vcpus=int(self._free.vcpus[row])
            ),
        )
