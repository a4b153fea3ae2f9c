"""What a pipeline thinks of hosts right now, without placing anything (spec scheduling, 16.1)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from capacity.host_table import current_host_table
from journal.heavy import Computing, computed_here
from scheduling.evaluation import CompiledPipeline
from scheduling.explain import HostExplanation, explain_host
from scheduling.intents import CallOptions
from scheduling.record import DecisionRecord, record_run
from scheduling.request import PlacementRequest
from scheduling.table import HostTable

MOST_HOSTS_IN_DETAIL = 50
"""Each costs a run of its own."""

HOSTS_IN_DETAIL = 3
SCORE_DIGITS = 6


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RunExplanation:
    """What a pipeline would decide for a request, and why.

    Attributes:
        record: What every step did to every host.
        details: Hosts in detail: the named ones, else the best.
    """

    record: DecisionRecord
    details: tuple[HostExplanation, ...]

    def as_document(self) -> dict[str, Any]:
        """Return the explanation for JSON.

        Every candidate has its first filter, or its rank and score; the hosts in detail have all
        filters that remove them with what would have to change, and each weigher's contribution.
        """
        record = self.record
        return {
            "pipeline": record.pipeline,
            "pipeline_version": record.pipeline_version,
            "intent": record.intent_label,
            "failure": record.failure or None,
            "started": len(record.candidates.rows()),
            "remaining": len(record.survivors.rows()),
            "target": record.target_host,
            "steps": [
                {
                    "step": trace.step,
                    "removed": trace.removed_count,
                    "remaining": trace.remaining,
                    "skipped_because": trace.skipped_because or None,
                }
                for trace in record.filters
            ],
            "weighers": [
                {
                    "step": trace.step,
                    "multiplier": trace.multiplier,
                    "ignored_because": trace.ignored_because or None,
                }
                for trace in record.weighers
            ],
            "explanation": record.text(),
            "hosts": _every_host(record),
            "details": [_detail(host) for host in self.details],
        }


def explain(
    request: PlacementRequest,
    pipeline: CompiledPipeline,
    *,
    options: CallOptions | None = None,
    host_names: Sequence[str] = (),
    computed: Computing = computed_here,
) -> RunExplanation:
    """Return what a pipeline would decide for a request; writes nothing.

    Args:
        pipeline: Filters and weighers.
        options: Call-time options.
        host_names: Hosts to explain in detail, known or not, at most
            :data:`MOST_HOSTS_IN_DETAIL`; the best ones when empty.
        computed: Where the run is made.

    Raises:
        InvalidOptionsError: the options contradict each other.
        UnplaceableRequestError: the request asks for no memory or no vCPUs.

    Source: spec scheduling, 16.1.
    """
    table = current_host_table()
    return computed(lambda: _explained(table, request, pipeline, options, host_names))


def _explained(
    table: HostTable,
    request: PlacementRequest,
    pipeline: CompiledPipeline,
    options: CallOptions | None,
    host_names: Sequence[str],
) -> RunExplanation:
    record = record_run(table, request, pipeline, options)
    names = tuple(dict.fromkeys(host_names))[:MOST_HOSTS_IN_DETAIL]
    if record.failure:
        return RunExplanation(record=record, details=())
    wanted = names or record.ordered_hosts[:HOSTS_IN_DETAIL]
    return RunExplanation(
        record=record,
        details=tuple(explain_host(table, record.request, pipeline, name) for name in wanted),
    )


def _every_host(record: DecisionRecord) -> list[dict[str, Any]]:
    """Return one entry per candidate: first the ranked ones, then by name."""
    entries: list[dict[str, Any]] = [
        {"host": name, "rank": rank, "score": round(score, SCORE_DIGITS), "removed_by": None}
        for rank, (name, score) in enumerate(
            zip(record.ordered_hosts, record.scores.tolist(), strict=True), start=1
        )
    ]
    ranked = set(record.ordered_rows)
    first = {row: trace.step for trace in record.filters for row in trace.removed.rows().tolist()}
    rest = [
        {"host": record.names[row], "rank": None, "score": None, "removed_by": first.get(row)}
        for row in record.candidates.rows().tolist()
        if row not in ranked
    ]
    return entries + sorted(rest, key=lambda entry: str(entry["host"]))


def _detail(host: HostExplanation) -> dict[str, Any]:
    return {
        "host": host.host_name,
        "is_known": host.is_known,
        "is_candidate": host.is_candidate,
        "removed_by": host.removed_by,
        "objections": [
            {"step": objection.step, "remedy": objection.remedy} for objection in host.objections
        ],
        "rank": host.rank,
        "score": round(host.score, SCORE_DIGITS),
        "start_weight": round(host.start_weight, SCORE_DIGITS),
        "contributions": {name: round(share, SCORE_DIGITS) for name, share in host.contributions},
    }
