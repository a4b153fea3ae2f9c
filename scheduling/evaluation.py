"""One request's filters and weighers over the host table (spec scheduling, 5.2 and 14.4)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from scheduling.columns import BoolColumn, FloatColumn, Int64Column
from scheduling.decision import Candidate, ClosestHost, StepRemoval
from scheduling.filters.base import ON_ERROR_SKIP, Filter, KeyFunction
from scheduling.filters.needs import short_of
from scheduling.filters.operators import is_operator
from scheduling.free import FreeColumns, Rows
from scheduling.host_names import HostWeights
from scheduling.request import HYPERVISOR_TYPE_KEY, PlacementRequest
from scheduling.resources import ResourceVector
from scheduling.table import HostTable
from scheduling.weighers.base import Weigher, tie_break_hashes

Clock: TypeAlias = Callable[[], float]

_MASK_CACHE_LIMIT = 512
_EVERY_HOST = ("", "every host")
_KVM_TYPES = frozenset({"qemu", "ch", "kvm"})


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledPipeline:
    """An ordered choice of filters and weighers.

    Attributes:
        name: Stable name.
        filters: Filters in declared order. The order decides which step a removed host is counted
            for, never which hosts survive.
        weighers: Weighers; their contributions are added in this order.
        ignore_preselection: Take all hosts instead of the caller's candidates and their weights.
        version: Version of the definition that it was made from; 0 if there is none.
        project_key: What its steps depend on of a request's project, besides the room that the
            project's reservations release; None for the project itself.
    """

    name: str
    filters: tuple[Filter, ...]
    weighers: tuple[Weigher, ...]
    ignore_preselection: bool = False
    version: int = 0
    project_key: KeyFunction | None = None


class PipelineRunError(Exception):
    """A run cannot come to a result; the text is the cause, for people."""


class StepFailedError(PipelineRunError):
    """A step that must judge could not, so the request fails (spec scheduling, 15.1).

    Attributes:
        step: Name of the step.
    """

    def __init__(self, step: str, cause: Exception) -> None:
        super().__init__(f"{step}: {cause}")
        self.step = step


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StepView:
    """What one filter sees of a request.

    Attributes:
        step: The filter.
        request: The request with the filter's own parameters combined.
        free: Free columns of that request.
    """

    step: Filter
    request: PlacementRequest
    free: FreeColumns


@dataclass(slots=True, kw_only=True)
class StepNotes:
    """Steps that could not judge and were passed over, and how long each step took.

    Attributes:
        skipped: Filter -> why; it kept all hosts.
        ignored: Weigher -> why; it had no effect.
        seconds: Step -> duration; empty without a clock.
        clock: Returns seconds from any origin; None measures nothing.
    """

    skipped: dict[str, str] = field(default_factory=dict)
    ignored: dict[str, str] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    clock: Clock | None = None

    def began(self) -> float:
        """Return when a step begins, by the clock."""
        return self.clock() if self.clock is not None else 0.0

    def ended(self, step: str, began: float) -> None:
        """Add the time since a step began to its duration."""
        if self.clock is not None:
            self.seconds[step] = self.seconds.get(step, 0.0) + self.clock() - began


def candidate_mask(
    table: HostTable, request: PlacementRequest, *, ignore_preselection: bool
) -> BoolColumn:
    """Return the hosts that a run starts with.

    Raises:
        PipelineRunError: If candidates are to be gathered for another hypervisor than KVM.

    Source: spec scheduling, 5.1; ``restrict_to_hosts``: 13.
    """
    if ignore_preselection:
        check_gatherable(request)
    if ignore_preselection or request.hosts is None:
        mask = table.is_known.copy()
    else:
        mask = _named(table, request.hosts)
    allowed = request.restrict_to_hosts
    if allowed is not None and (ignore_preselection or allowed is not request.hosts):
        mask &= _named(table, allowed)
    return mask


def check_gatherable(request: PlacementRequest) -> None:
    """Check that all hosts may be taken as candidates.

    Raises:
        PipelineRunError: If the flavor's hypervisor type is missing or not KVM's.

    Source: spec scheduling, 5.1.
    """
    wanted = request.extra_specs.get(HYPERVISOR_TYPE_KEY, request.hypervisor_type)
    if wanted is None:
        raise PipelineRunError("missing hypervisor_type")
    kinds = [word for word in wanted.lower().split() if not is_operator(word)]
    if not kinds or not _KVM_TYPES.issuperset(kinds):
        raise PipelineRunError(f"cannot gather for this type: {wanted}")


def _named(table: HostTable, names: Collection[str]) -> BoolColumn:
    mask = np.zeros(len(table) + 1, dtype=np.bool_)
    mask[table.rows_of(names)] = True  # those without a row are -1, which is the last place
    return mask[:-1]


def static_mask(table: HostTable, view: StepView) -> BoolColumn | None:
    """Return the cached mask of an inactive or static filter, None for any other.

    Inactive filters keep every host.
    """
    step, request = view.step, view.request
    if step.is_active is not None and not step.is_active(request):
        return _cached(table, _EVERY_HOST, lambda: np.ones(len(table), dtype=np.bool_))
    if step.static_key is None:
        return None
    key = (step.name, step.static_key(table, request))
    return _cached(table, key, lambda: checked_mask(table, view, view.free))


def static_keys(
    table: HostTable, request: PlacementRequest, pipeline: CompiledPipeline
) -> Hashable:
    """Return what the verdict of a pipeline's static filters on a request depends on."""
    return tuple(
        step.static_key(table, request)
        if step.is_active is None or step.is_active(request)
        else None
        for step in pipeline.filters
        if step.static_key is not None
    )


def class_of(
    table: HostTable, request: PlacementRequest, pipeline: CompiledPipeline
) -> Hashable | None:
    """Return what the hosts that pass a pipeline depend on of a request; None if on all of it.

    For requests that name no hosts, of which filters that see room or adapt the request say
    nothing.
    """
    steps = [step for step in pipeline.filters if step.is_active is None or step.is_active(request)]
    if request.hosts is not None or request.restrict_to_hosts is not None:
        return None
    if any(step.static_key is None or step.adapt is not None for step in steps):
        return None
    wanted = request.extra_specs.get(HYPERVISOR_TYPE_KEY, request.hypervisor_type)
    return wanted, static_keys(table, request, pipeline)


def filter_mask(table: HostTable, view: StepView, notes: StepNotes) -> BoolColumn:
    """Return what one filter thinks of every host, whatever the other filters think.

    Raises:
        StepFailedError: If the filter cannot judge and its policy is to fail.
    """
    mask, is_static = _judged(table, view, notes)
    return mask.copy() if is_static else mask


def checked_mask(table: HostTable, view: StepView, free: FreeColumns) -> BoolColumn:
    """Return the mask of a filter for the rows of ``free``; it must have one entry for each.

    Raises:
        ValueError: If the mask is of another shape.
    """
    mask = view.step.mask(table, view.request, free)
    if mask.shape != free.vcpus.shape or mask.dtype != np.bool_:
        raise ValueError("the mask does not have one entry for each host")
    return mask


def _judged(table: HostTable, view: StepView, notes: StepNotes) -> tuple[BoolColumn, bool]:
    """Return the mask and whether it is static (or stands for a filter that was skipped)."""
    try:
        mask = static_mask(table, view)
        if mask is not None:
            return mask, True
        return checked_mask(table, view, view.free), False
    except Exception as problem:
        if view.step.on_error != ON_ERROR_SKIP:
            raise StepFailedError(view.step.name, problem) from problem
        notes.skipped[view.step.name] = str(problem)
        return np.ones(len(table), dtype=np.bool_), True


def _cached(
    table: HostTable, key: tuple[str, Hashable], make: Callable[[], BoolColumn]
) -> BoolColumn:
    mask = table.mask_cache.get(key)
    if mask is None:
        mask = make()
        mask.flags.writeable = False
        if len(table.mask_cache) >= _MASK_CACHE_LIMIT:
            table.mask_cache.clear()
        table.mask_cache[key] = mask
    return mask


class Evaluation:
    """Surviving hosts and scores for all requests that differ in their key alone.

    Attributes:
        candidates: bool[N], hosts before the first filter.
        views: What each filter sees.
        free: What the hosts have free for the request, as its capacity filter sees it.
        notes: Steps that were passed over.
        removals: What each filter removed, in declared order.
    """

    def __init__(
        self,
        *,
        table: HostTable,
        pipeline: CompiledPipeline,
        request: PlacementRequest,
        views: Sequence[StepView],
        free: FreeColumns,
        placed_count: int = 0,
        clock: Clock | None = None,
    ) -> None:
        self._table = table
        self._pipeline = pipeline
        self._request = request
        self._placed_seen = placed_count
        self._closest: ClosestHost | None = None
        self.views = views
        self.free = free
        self.notes = StepNotes(clock=clock)
        self.candidates = candidate_mask(
            table, request, ignore_preselection=pipeline.ignore_preselection
        )
        self._masks: list[BoolColumn | None] = []
        self._passed: list[BoolColumn] = []
        self._remaining: list[int] = []
        self._evaluate_filters()
        self._first_dynamic = next(
            (index for index, mask in enumerate(self._masks) if mask is None), len(views)
        )
        self._active_weighers = tuple(
            weigher.is_active is None or weigher.is_active(request) for weigher in pipeline.weighers
        )
        wide = [
            weigher
            for weigher, is_active in zip(pipeline.weighers, self._active_weighers, strict=True)
            if is_active and not weigher.is_row_local
        ]
        self._is_row_local = not wide
        self._knows_room = any(not weigher.is_of_survivors for weigher in wide)
        self._preferred = self._preferred_mask()
        self.start_weights = self._start_weights()
        self._scores: FloatColumn = np.full(len(table), -np.inf)
        self._contributions: list[FloatColumn] = [
            np.zeros(len(table), dtype=np.float64) for _ in pipeline.weighers
        ]
        self._weigh_survivors()
        self.removals = self._counted()

    @property
    def scores(self) -> FloatColumn:
        """Return float64[N], minus infinity for hosts that do not survive."""
        return self._scores

    @property
    def contributions(self) -> Sequence[FloatColumn]:
        """Return float64[N] of ``multiplier * tanh(activation)`` for each weigher."""
        return self._contributions

    def passed_after(self, index: int) -> BoolColumn:
        """Return the hosts left after the filter with this index."""
        return self._passed[index]

    def survivors(self) -> BoolColumn:
        """Return the hosts left after all filters."""
        return self._passed[-1] if self._passed else self.candidates

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
        """Return the best rows in order: tier, score, then tie-break hash, then name."""
        scores = self._scores
        if self._preferred is not None:
            return self._best_of_tiers(self._preferred, request_key, max_candidates)
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

    def rank_of(self, row: int, request_key: str) -> int | None:
        """Return the place of a row in the answer, 1 for the best; None if it does not survive."""
        score = self._scores[row]
        if score == -np.inf:
            return None
        peers, ahead = self._scores > -np.inf, 0
        if self._preferred is not None:
            ahead = 0 if self._preferred[row] else int(np.count_nonzero(peers & self._preferred))
            peers &= self._preferred == self._preferred[row]
        tied = np.flatnonzero(peers & (self._scores == score))
        before_in_tie = self._ordered(tied, request_key, len(tied)).index(row)
        return ahead + int(np.count_nonzero(peers & (self._scores > score))) + before_in_tie + 1

    def is_preferred(self, row: int) -> bool:
        """Return whether a row comes before all others, whatever the scores."""
        return self._preferred is not None and bool(self._preferred[row])

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
        """Return the host nearest to having room among those that pass all other filters."""
        if self._closest is None and self._request.memory_bytes and self._request.vcpus:
            self._closest = self._find_closest()
        return self._closest

    def contributions_at(self, rows: Int64Column) -> list[FloatColumn]:
        """Return each weigher's contribution as if the given hosts were the survivors."""
        free = self.free.at(rows)
        return [self._contribution(index, free) for index in range(len(self._active_weighers))]

    def _preferred_mask(self) -> BoolColumn | None:
        """Return the hosts that some weigher puts before all others; None if there are none."""
        rows: list[int] = []
        for weigher, is_active in zip(self._pipeline.weighers, self._active_weighers, strict=True):
            if is_active and weigher.preferred_rows is not None:
                rows.extend(weigher.preferred_rows(self._table, self._request))
        if not rows:
            return None
        mask: BoolColumn = np.zeros(len(self._table), dtype=np.bool_)
        mask[rows] = True
        return mask

    def _best_of_tiers(
        self, preferred: BoolColumn, request_key: str, max_candidates: int
    ) -> list[int]:
        survives = self._scores > -np.inf
        ranked: list[int] = []
        for tier in (preferred, ~preferred):
            rows = np.flatnonzero(survives & tier)
            count = max_candidates - len(ranked) if max_candidates else len(rows)
            if len(rows) and count:
                ranked += self._ordered(rows, request_key, min(count, len(rows)))
        return ranked

    def _start_weights(self) -> FloatColumn:
        start: FloatColumn = np.zeros(len(self._table) + 1, dtype=np.float64)
        weights = self._request.weights
        if not weights or self._pipeline.ignore_preselection:
            return start[:-1]
        names: Collection[str] = weights
        if isinstance(weights, HostWeights):
            names, given = weights.names, weights.column
        else:
            given = np.fromiter(weights.values(), dtype=np.float64, count=len(weights))
        if given.any():
            start[self._table.rows_of(names)] = given  # those without share the last place
        start = start[:-1]
        return np.tanh(start) if self._pipeline.weighers else start

    def _evaluate_filters(self) -> None:
        passed = self.candidates
        for view in self.views:
            began = self.notes.began()
            mask, is_static = _judged(self._table, view, self.notes)
            self.notes.ended(view.step.name, began)
            self._masks.append(mask if is_static else None)
            passed = passed & mask
            self._passed.append(passed)
            self._remaining.append(int(np.count_nonzero(passed)))

    def _look_again(self, rows: Rows) -> None:
        passed = self.candidates[rows]
        if self._first_dynamic:
            passed = self._passed[self._first_dynamic - 1][rows]
        has_changed = has_moved = False
        for index in range(self._first_dynamic, len(self._passed)):
            mask, view = self._masks[index], self.views[index]
            if mask is None:
                passed = passed & checked_mask(self._table, view, view.free.at(rows))
            else:
                passed = passed & mask[rows]
            column = self._passed[index]
            change = int(np.count_nonzero(passed)) - int(np.count_nonzero(column[rows]))
            if change:
                self._remaining[index] += change
                has_changed = True
            has_moved = not np.array_equal(passed, column[rows])
            column[rows] = passed
        if has_changed:
            self.removals = self._counted()
        if self._is_row_local or not (self._knows_room or has_moved):
            self._weigh(self.free.at(rows), passed)
        else:
            self._scores.fill(-np.inf)
            self._weigh_survivors()

    def _weigh_survivors(self) -> None:
        self._weigh(self.free.at(np.flatnonzero(self.survivors())), None)

    def _weigh(self, free: FreeColumns, survives: BoolColumn | None) -> None:
        """Weigh some rows.

        Args:
            free: What they have.
            survives: bool[K], which of them survive; None if they are all that survive.
        """
        total = self.start_weights[free.rows].copy()
        for index, column in enumerate(self._contributions):
            if self._active_weighers[index]:
                began = self.notes.began()
                if survives is not None and not self._pipeline.weighers[index].is_row_local:
                    contribution = column[free.rows]  # the same hosts survive as when it was made
                else:
                    contribution = self._contribution(index, free)
                self.notes.ended(self._pipeline.weighers[index].name, began)
                column[free.rows] = contribution
                total += contribution
        self._scores[free.rows] = total if survives is None else np.where(survives, total, -np.inf)

    def _contribution(self, index: int, free: FreeColumns) -> FloatColumn:
        weigher = self._pipeline.weighers[index]
        count = len(free.vcpus)
        if not self._active_weighers[index] or not count:
            return np.zeros(count, dtype=np.float64)
        try:
            activation = weigher.activation(self._table, self._request, free)
        except Exception as problem:  # noqa: BLE001 - a step may be a plug-in and raise anything
            self.notes.ignored[weigher.name] = str(problem)
            return np.zeros(count, dtype=np.float64)
        if activation.shape != (count,) or bool(np.isnan(activation).any()):
            self.notes.ignored[weigher.name] = "not one number for each host"
            return np.zeros(count, dtype=np.float64)
        return weigher.multiplier * np.tanh(activation)

    def _counted(self) -> tuple[StepRemoval, ...]:
        before = [int(np.count_nonzero(self.candidates)), *self._remaining]
        return tuple(
            StepRemoval(step=view.step.name, removed=before[index] - remaining, remaining=remaining)
            for index, (view, remaining) in enumerate(zip(self.views, self._remaining, strict=True))
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
        order = np.lexsort((hashes, -scores))
        scores, hashes = scores[order], hashes[order]
        if bool(((scores[1:] == scores[:-1]) & (hashes[1:] == hashes[:-1])).any()):
            names = np.array([self._table.names[row] for row in rows[order].tolist()])
            order = order[np.lexsort((names, hashes, -scores))]
        ranked: list[int] = rows[order[:count]].tolist()
        return ranked

    def _find_closest(self) -> ClosestHost | None:
        passing = self.candidates.copy()
        for mask, view in zip(self._masks, self.views, strict=True):
            if not view.step.measures_room:
                passing &= checked_mask(self._table, view, view.free) if mask is None else mask
        rows = np.flatnonzero(passing)
        if not len(rows):
            return None
        asked = self._request.asked
        share = np.minimum(
            self.free.memory_bytes[rows] / asked.memory_bytes,
            self.free.vcpus[rows] / asked.vcpus,
        )
        others = self.free.others
        if others is not None:
            has_others = (others[rows] >= np.array(self._request.needs, dtype=np.int64)).all(axis=1)
            share = np.where(has_others, share, share - 1e9)
        tied = rows[share == share.max()].tolist()
        row = min(tied, key=lambda index: self._table.names[index])
        return ClosestHost(
            host_name=self._table.names[row],
            host_id=int(self._table.host_ids[row]),
            free=ResourceVector(
                memory_bytes=int(self.free.memory_bytes[row]),
                vcpus=int(self.free.vcpus[row]),
            ),
            short="" if others is None else short_of(self._request, tuple(others[row].tolist())),
        )
