"""What each step of a run cost and changed, for the metrics (spec scheduling, 11)."""

from __future__ import annotations

import itertools
import time

from capacity import metrics_scheduling as metrics
from capacity.domain.step_impact import shift_origins, step_impact
from scheduling.engine import step_views, table_for
from scheduling.evaluation import Pipeline, PipelineRunError, StepNotes, filter_mask
from scheduling.record import DecisionRecord
from scheduling.resources import GIB
from scheduling.table import HostTable

TIMED_ONCE_IN = 100
"""Timing the filters means running them again."""

_runs = itertools.count()


def observe_steps(table: HostTable, pipeline: Pipeline, record: DecisionRecord) -> None:
    """Count what the steps of a run did: removals, events, shifts; sometimes also their time.

    Args:
        table: Hosts that the run looked at.
        pipeline: What ran.
        record: What every step did.
    """
    if record.failure:
        return
    metrics.observe_removals(
        pipeline.name, ((trace.step, trace.removed_count) for trace in record.filters)
    )
    for event in record.events:
        metrics.count_event(pipeline.name, event.step, event.event, event.labels)
    _observe_order(table, pipeline.name, record)
    if next(_runs) % TIMED_ONCE_IN == 0:
        _time_filters(table, pipeline, record)


def _observe_order(table: HostTable, pipeline_name: str, record: DecisionRecord) -> None:
    """Follow the order of the answer's hosts from weigher to weigher."""
    rows = record.ordered_rows
    known = [row for row in rows if row < len(table)]
    free_gib = {
        row: (int(table.eff_memory_bytes[row]) - int(table.alloc_memory_bytes[row])) / GIB
        for row in known
    }
    free_vcpus = {row: float(table.eff_vcpus[row] - table.alloc_vcpus[row]) for row in known}
    scores = record.start_weights.copy()
    before = [rows[place] for place in (-scores).argsort(kind="stable").tolist()]
    for trace in record.weighers:
        scores += trace.contributions
        after = [rows[place] for place in (-scores).argsort(kind="stable").tolist()]
        metrics.observe_shift(
            pipeline_name,
            trace.step,
            origins=shift_origins(before, after),
            impacts={
                ("free_memory", "GiB"): step_impact(before, after, free_gib),
                ("free_cpu", "vcpus"): step_impact(before, after, free_vcpus),
            },
        )
        before = after


def _time_filters(table: HostTable, pipeline: Pipeline, record: DecisionRecord) -> None:
    full = table_for(table, (record.request,), pipeline)
    try:
        for view in step_views(full, record.request, pipeline):
            started = time.perf_counter()
            filter_mask(full, view, StepNotes())
            metrics.STEP_DURATION_SECONDS.labels(
                pipeline=pipeline.name, step=view.step.name
            ).observe(time.perf_counter() - started)
    except PipelineRunError:
        return
