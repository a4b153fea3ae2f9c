"""Why a host was chosen or not, and what would have to change (spec scheduling, 16.1)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from scheduling.engine import Batch, table_for
from scheduling.evaluation import CompiledPipeline, StepNotes, StepView, filter_mask
from scheduling.request import PlacementRequest
from scheduling.table import HostTable


@dataclass(frozen=True, slots=True, kw_only=True)
class FilterObjection:
    """A filter that removes a host.

    Attributes:
        step: Name of the filter.
        remedy: What would have to change, for people.
    """

    step: str
    remedy: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HostExplanation:
    """What a run thinks of one host.

    Attributes:
        is_known: Whether the host table has it.
        is_candidate: Whether the run starts with it.
        objections: Every filter that removes it whatever the others do, in declared order.
        start_weight: Weight it starts with.
        contributions: (weigher, ``multiplier * tanh(activation)``) as if it survived.
        score: Sum of start weight and contributions.
        rank: Its place in the answer, 1 for the best; None if it does not survive.
    """

    host_name: str
    is_known: bool
    is_candidate: bool
    objections: tuple[FilterObjection, ...]
    start_weight: float
    contributions: tuple[tuple[str, float], ...]
    score: float
    rank: int | None

    @property
    def removed_by(self) -> str | None:
        """Return the first filter in declared order that removes the host."""
        return self.objections[0].step if self.objections else None


def explain_host(
    table: HostTable, request: PlacementRequest, pipeline: CompiledPipeline, host_name: str
) -> HostExplanation:
    """Say what a pipeline thinks of one host for a request; changes nothing.

    Each filter is asked on its own, so that all objections show up. Weighers that compare hosts
    see the survivors and this host.

    Args:
        pipeline: Filters and weighers.
        host_name: The host to explain; may be unknown.

    Raises:
        PipelineRunError: If a step fails the request.
    """
    full = table_for(table, (request,), pipeline).with_unknown((host_name,))
    row = full.row_of[host_name]
    evaluation = Batch(full, pipeline).evaluation(request)
    notes = StepNotes()
    objections = tuple(
        FilterObjection(step=view.step.name, remedy=_remedy(full, view, row))
        for view in evaluation.views
        if not filter_mask(full, view, notes)[row]
    )
    weighed = evaluation.survivors().copy()
    weighed[row] = True
    rows = np.flatnonzero(weighed)
    index = int(np.searchsorted(rows, row))
    parts = tuple(
        (weigher.name, float(column[index]))
        for weigher, column in zip(
            pipeline.weighers, evaluation.contributions_at(rows), strict=True
        )
    )
    start = float(evaluation.start_weights[row])
    return HostExplanation(
        host_name=host_name,
        is_known=bool(full.is_known[row]),
        is_candidate=bool(evaluation.candidates[row]),
        objections=objections,
        start_weight=start,
        contributions=parts,
        score=start + sum(part for _, part in parts),
        rank=evaluation.rank_of(row, request.request_key),
    )


def _remedy(table: HostTable, view: StepView, row: int) -> str:
    if view.step.remedy is None:
        return f"{view.step.name} must accept the host"
    return view.step.remedy(table, view.request, view.free, row)
