"""From a run of the engine to the decision that is kept (spec scheduling, 10.5)."""

from __future__ import annotations

from dataclasses import dataclass

from capacity.nova.decisions import (
    TOP_HOSTS_KEPT,
    KeptDecision,
    KeptStep,
    record_decision,
)
from scheduling import record as engine


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedRun:
    """A run and what came of it.

    Attributes:
        record: What every step did.
        host_names: Hosts of the answer, the target first.
        message: Why the answer is empty although hosts passed; empty otherwise.
        outcome_class: Class of commitment tracking; empty when none applies.
        flavor_group: Flavor group; empty when the flavor is in none.
        duration_microseconds: Time of the whole run.
    """

    record: engine.DecisionRecord
    host_names: tuple[str, ...]
    message: str
    outcome_class: str
    flavor_group: str
    request_id: str
    duration_microseconds: int


def keep_run(outcome: FinishedRun) -> None:
    """Record a run as a decision; never fails."""
    record = outcome.record
    text = record.text()
    record_decision(
        KeptDecision(
            request=record.request,
            pipeline_name=record.pipeline,
            pipeline_version=record.pipeline_version,
            host_names=record.names,
            candidates=record.candidates,
            steps=tuple(
                KeptStep(
                    step=trace.step,
                    removed=trace.removed if trace.removed_count else None,
                    remaining=trace.remaining,
                    note=trace.skipped_because,
                )
                for trace in record.filters
            ),
            top=record.top(TOP_HOSTS_KEPT),
            hosts_out=hosts_out(record),
            target_host_name=outcome.host_names[0] if outcome.host_names else "",
            is_successful=bool(outcome.host_names),
            message=f"{outcome.message}\n\n{text}" if outcome.message else text,
            outcome_class=outcome.outcome_class,
            flavor_group_name=outcome.flavor_group,
            request_id=outcome.request_id,
            duration_microseconds=outcome.duration_microseconds,
        )
    )


def hosts_in(record: engine.DecisionRecord) -> int:
    """Return how many hosts a run started with."""
    return record.candidates.count()


def hosts_out(record: engine.DecisionRecord) -> int:
    """Return how many hosts passed every filter."""
    return record.survivors.count()
