"""What each step of a run cost and changed, for the metrics (spec scheduling, 11)."""

from __future__ import annotations

from django.conf import settings

from capacity.metrics import scheduling as metrics
from capacity.nova.step_impact import shift_origins, step_impact
from scheduling.record import DecisionRecord
from scheduling.resources import GIB
from scheduling.table import HostTable


def observe_steps(table: HostTable, pipeline_name: str, record: DecisionRecord) -> None:
    """Count what the steps of a run did: time, removals, events, shifts; on demand also weights.

    Args:
        table: Hosts that the run looked at.
        pipeline_name: What ran.
        record: What every step did.
    """
    if record.failure:
        return
    metrics.observe_removals(
        pipeline_name, ((trace.step, trace.removed_count) for trace in record.filters)
    )
    for event in record.events:
        metrics.count_event(pipeline_name, event.step, event.event, event.labels, count=event.count)
    _observe_order(table, pipeline_name, record)
    metrics.observe_durations(pipeline_name, record.step_seconds)
    if settings.HEADROOM.scheduler.weight_modification_metric:
        for weigher in record.weighers:
            changes = zip(record.ordered_hosts, weigher.contributions.tolist(), strict=True)
            metrics.add_weight_modifications(pipeline_name, weigher.step, changes)


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
