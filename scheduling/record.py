"""The record of one run: what every step did to every host (spec scheduling, 10.1, 10.3, 14.2).

Masks are packed to one bit per host and contributions stay columns; dictionaries by host name are
made only when somebody asks for them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np

from scheduling.columns import BoolColumn, FloatColumn, Int64Column
from scheduling.decision import Candidate
from scheduling.engine import Batch, check_placeable, table_for
from scheduling.evaluation import Clock, CompiledPipeline, Evaluation, PipelineRunError
from scheduling.filters.base import StepEvent
from scheduling.intents import CallOptions
from scheduling.request import PlacementRequest
from scheduling.table import HostTable
from scheduling.weighing_text import WeighedHost, weighing_text

_MOST_NAMES = 10


class InvalidOptionsError(ValueError):
    """Call-time options that contradict each other (spec scheduling, 3)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedMask:
    """A set of hosts, one bit each.

    Attributes:
        bits: The mask as ``numpy.packbits`` packs it.
        hosts: Number of hosts of the table.
    """

    bits: bytes
    hosts: int

    @classmethod
    def pack(cls, mask: BoolColumn) -> PackedMask:
        """Pack bool[N]."""
        return cls(bits=np.packbits(mask).tobytes(), hosts=len(mask))

    def count(self) -> int:
        """Return how many hosts are in the set."""
        return int.from_bytes(self.bits, "big").bit_count()

    def rows(self) -> Int64Column:
        """Return the rows of the hosts in the set, ascending."""
        unpacked = np.unpackbits(np.frombuffer(self.bits, dtype=np.uint8), count=self.hosts)
        return np.flatnonzero(unpacked).astype(np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class FilterTrace:
    """What a filter did.

    Attributes:
        removed: Hosts it removed of those left before it.
        removed_count: How many.
        remaining: How many it left.
        skipped_because: Why it was passed over; empty if it was not.
        seconds: How long it took; None if that was not measured.
    """

    step: str
    removed: PackedMask
    removed_count: int
    remaining: int
    skipped_because: str = ""
    seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WeigherTrace:
    """What a weigher did.

    Attributes:
        multiplier: Its multiplier.
        contributions: float64, ``multiplier * tanh(activation)`` of each ordered host.
        ignored_because: Why it had no effect; empty if it had.
        seconds: How long it took; None if that was not measured or it was not active.
    """

    step: str
    multiplier: float
    contributions: FloatColumn
    ignored_because: str = ""
    seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DecisionRecord:
    """The result of one run with everything that led to it.

    Attributes:
        request: What was asked, with the options combined.
        pipeline_version: Version of its definition.
        names: Host names by row.
        candidates: Hosts before the first filter.
        survivors: Hosts after the last filter; the answer may have fewer.
        filters: What each filter did, in declared order.
        weighers: What each weigher did, in declared order.
        ordered_rows: Rows of the answer, best first.
        start_weights: float64, the weight that each ordered host started with.
        scores: float64, score of each ordered host.
        events: What steps want counted.
        preferred: How many hosts of the answer come first whatever their score, since a weigher
            puts them before all others.
        failure: Why the run came to no result; empty if it did.
        ordered_hosts: The answer, best first: names of ``ordered_rows``.
    """

    request: PlacementRequest
    pipeline: str
    pipeline_version: int
    names: tuple[str, ...]
    candidates: PackedMask
    survivors: PackedMask
    filters: tuple[FilterTrace, ...]
    weighers: tuple[WeigherTrace, ...]
    ordered_rows: tuple[int, ...]
    start_weights: FloatColumn
    scores: FloatColumn
    events: tuple[StepEvent, ...]
    preferred: int = 0
    failure: str = ""
    ordered_hosts: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        ordered = tuple(map(self.names.__getitem__, self.ordered_rows))
        object.__setattr__(self, "ordered_hosts", ordered)

    @property
    def intent_label(self) -> str:
        """Return the intent, ``Unknown`` if the request has none."""
        return self.request.intent.value if self.request.intent else "Unknown"

    @property
    def target_host(self) -> str | None:
        """Return the first host of the answer."""
        return self.names[self.ordered_rows[0]] if self.ordered_rows else None

    @property
    def step_seconds(self) -> tuple[tuple[str, float], ...]:
        """Return how long each step took that was measured: pairs of step and seconds."""
        traces = (
            *((trace.step, trace.seconds) for trace in self.filters),
            *((trace.step, trace.seconds) for trace in self.weighers),
        )
        return tuple((step, seconds) for step, seconds in traces if seconds is not None)

    def top(self, count: int) -> tuple[Candidate, ...]:
        """Return the best hosts with each weigher's contribution; keys of hosts are not known."""
        return tuple(
            Candidate(
                host_name=self.names[row],
                host_id=0,
                score=float(self.scores[index]),
                contributions=self._contributions(index),
            )
            for index, row in enumerate(self.ordered_rows[:count])
        )

    def text(self) -> str:
        """Return the explanation (spec scheduling, 10.3 and 10.4)."""
        ordered = self.ordered_hosts
        text = _explanation(
            started=self.candidates.count(),
            removals=[
                (trace.step, _packed_names(trace.removed, self))
                for trace in self.filters
                if trace.removed_count
            ],
            remaining=_packed_names(self.survivors, self),
            target=self.target_host,
            has_steps=bool(self.filters or self.weighers),
            failure=self.failure,
        )
        weighing = weighing_text(
            [
                WeighedHost(
                    name=name,
                    input_weight=float(self.start_weights[index]),
                    contributions=self._contributions(index),
                )
                for index, name in enumerate(ordered)
            ],
            preferred=self.preferred,
        )
        return f"{text}\n\n{weighing}" if weighing else text

    def _contributions(self, index: int) -> tuple[tuple[str, float], ...]:
        return tuple((trace.step, float(trace.contributions[index])) for trace in self.weighers)


def record_run(
    table: HostTable,
    request: PlacementRequest,
    pipeline: CompiledPipeline,
    options: CallOptions | None = None,
    *,
    clock: Clock | None = None,
) -> DecisionRecord:
    """Run a pipeline for one request and keep what every step did.

    A step that fails the request gives a record with the failure, not an exception.

    Args:
        pipeline: Filters and weighers to run.
        options: Call-time options; they are combined with those of the steps.
        clock: Returns seconds from any origin, to measure each step; None measures nothing.

    Raises:
        InvalidOptionsError: If the options contradict each other.
        UnplaceableRequestError: If the request asks for no memory or no vCPUs, and for room.

    Source: spec scheduling, 5.2 and 10.1.
    """
    options = options if options is not None else CallOptions()
    problem = options.problem()
    if problem:
        raise InvalidOptionsError(problem)
    combined = request.with_options(options)
    check_placeable(combined, pipeline)
    full = table_for(table, (combined,), pipeline)
    try:
        evaluation = Batch(full, pipeline, clock=clock).evaluation(combined)
    except PipelineRunError as failure:
        return _failed(full, combined, pipeline, str(failure))
    return _recorded(full, combined, pipeline, evaluation, options.max_candidates)


def _recorded(
    table: HostTable,
    request: PlacementRequest,
    pipeline: CompiledPipeline,
    evaluation: Evaluation,
    max_candidates: int,
) -> DecisionRecord:
    rows = evaluation.best_rows(request.request_key, max_candidates)
    notes = evaluation.notes
    nobody = PackedMask(bits=bytes(-(-len(table) // 8)), hosts=len(table))
    before = [
        evaluation.candidates,
        *(evaluation.passed_after(index) for index in range(len(pipeline.filters))),
    ]
    return DecisionRecord(
        request=request,
        pipeline=pipeline.name,
        pipeline_version=pipeline.version,
        names=table.names,
        candidates=PackedMask.pack(evaluation.candidates),
        survivors=PackedMask.pack(evaluation.survivors()),
        filters=tuple(
            FilterTrace(
                step=removal.step,
                removed=(
                    PackedMask.pack(before[index] & ~before[index + 1])
                    if removal.removed
                    else nobody
                ),
                removed_count=removal.removed,
                remaining=removal.remaining,
                skipped_because=notes.skipped.get(removal.step, ""),
                seconds=notes.seconds.get(removal.step),
            )
            for index, removal in enumerate(evaluation.removals)
        ),
        weighers=tuple(
            WeigherTrace(
                step=weigher.name,
                multiplier=weigher.multiplier,
                contributions=column[rows],
                ignored_because=notes.ignored.get(weigher.name, ""),
                seconds=notes.seconds.get(weigher.name),
            )
            for weigher, column in zip(pipeline.weighers, evaluation.contributions, strict=True)
        ),
        ordered_rows=tuple(rows),
        start_weights=evaluation.start_weights[rows],
        scores=evaluation.scores[rows],
        events=tuple(_events(table, evaluation)),
        preferred=sum(evaluation.is_preferred(row) for row in rows),
    )


def _events(table: HostTable, evaluation: Evaluation) -> Iterable[StepEvent]:
    before = evaluation.candidates
    for index, view in enumerate(evaluation.views):
        step = view.step
        is_active = step.is_active is None or step.is_active(view.request)
        if step.events is not None and is_active and step.name not in evaluation.notes.skipped:
            yield from step.events(table, view.request, before)
        before = evaluation.passed_after(index)


def _failed(
    table: HostTable, request: PlacementRequest, pipeline: CompiledPipeline, failure: str
) -> DecisionRecord:
    nothing: FloatColumn = np.zeros(0, dtype=np.float64)
    no_hosts = PackedMask.pack(np.zeros(len(table), dtype=np.bool_))
    return DecisionRecord(
        request=request,
        pipeline=pipeline.name,
        pipeline_version=pipeline.version,
        names=table.names,
        candidates=no_hosts,
        survivors=no_hosts,
        filters=(),
        weighers=(),
        ordered_rows=(),
        start_weights=nothing,
        scores=nothing,
        events=(),
        failure=failure,
    )


def _explanation(
    *,
    started: int,
    removals: Sequence[tuple[str, _Named]],
    remaining: _Named,
    target: str | None,
    has_steps: bool,
    failure: str,
) -> str:
    if failure:
        return f"CompiledPipeline run failed: {failure}."
    selected = f"Selected host: {target}." if target is not None else ""
    if not has_steps or not started:
        return selected
    lines = [
        f"Started with {started} host(s).",
        "",
        *(f"{step} filtered out {named.text}" for step, named in removals if named.count),
        "",
        f"{remaining.count} hosts remaining{f' ({remaining.text})' if remaining.count else ''}",
    ]
    return "\n".join([*lines, "", selected] if selected else lines)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Named:
    """Hosts as the explanation names them.

    Attributes:
        count: How many.
        first: The first of them by name.
    """

    count: int
    first: Sequence[str]

    @property
    def text(self) -> str:
        shown = ", ".join(self.first)
        hidden = self.count - len(self.first)
        return f"{shown} (and {hidden} more)" if hidden else shown


def _packed_names(packed: PackedMask, record: DecisionRecord) -> _Named:
    """Return the hosts of a mask as the explanation names them, without sorting them all."""
    rows = packed.rows()
    if len(rows) > _MOST_NAMES:
        places = _alphabetical_places(record.names)[rows]
        first = rows[np.argpartition(places, _MOST_NAMES)[:_MOST_NAMES]]
    else:
        first = rows
    names = sorted(map(record.names.__getitem__, first.tolist()))
    return _Named(count=len(rows), first=names)


_last_places: tuple[tuple[str, ...], Int64Column] = ((), np.zeros(0, dtype=np.int64))


def _alphabetical_places(names: tuple[str, ...]) -> Int64Column:
    """Return int64[N], the place of each host among all by name; kept while hosts stay the same."""
    global _last_places  # noqa: PLW0603 - to hash thousands of names takes longer than all else
    known, places = _last_places
    if known is not names:
        places = _sorted_places(names)
        _last_places = (names, places)
    return places


@lru_cache(maxsize=4)
def _sorted_places(names: tuple[str, ...]) -> Int64Column:
    places = np.empty(len(names), dtype=np.int64)
    places[sorted(range(len(names)), key=names.__getitem__)] = np.arange(len(names))
    return places
