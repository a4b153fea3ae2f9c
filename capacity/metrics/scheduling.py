"""Metrics of scheduling runs and of the endpoint that Nova calls (spec scheduling, 11)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache

from prometheus_client import Counter, Gauge, Histogram

from journal.metrics import metric_name

HOST_COUNT_BUCKETS = tuple(1000 ** (step / 9) for step in range(10))
SHIFT_BUCKETS = (*range(10), *range(10, 50, 10), *range(50, 301, 50))
IMPACT_BUCKETS = tuple(0.01 * 100_000 ** (step / 19) for step in range(20))
QUOTA_EVENT = "quota_enforcement_decision"
QUOTA_LABELS = ("mode", "decision", "resource", "availability_zone", "flavor_group")
RESERVED_EVENT_LABELS = frozenset({"pipeline", "step", "event"})

PIPELINE_REQUESTS = Counter(
    metric_name("filter_weigher_pipeline_requests_total"), "Runs of a pipeline.", ["pipeline"]
)
PIPELINE_DURATION_SECONDS = Histogram(
    metric_name("filter_weigher_pipeline_run_duration_seconds"),
    "Duration of a run: filters, weighers and order.",
    ["pipeline"],
    buckets=(0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1),
)
HOSTS_IN = Histogram(
    metric_name("filter_weigher_pipeline_host_number_in"),
    "Hosts before the first filter.",
    ["pipeline"],
    buckets=HOST_COUNT_BUCKETS,
)
HOSTS_OUT = Histogram(
    metric_name("filter_weigher_pipeline_host_number_out"),
    "Hosts after the last filter.",
    ["pipeline"],
    buckets=HOST_COUNT_BUCKETS,
)
STEP_DURATION_SECONDS = Histogram(
    metric_name("filter_weigher_pipeline_step_run_duration_seconds"),
    "Duration of a filter or weigher.",
    ["pipeline", "step"],
    buckets=(0.00001, 0.000025, 0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.01, 0.1),
)
STEP_REMOVED = Histogram(
    metric_name("filter_weigher_pipeline_step_removed_hosts"),
    "Hosts that a filter removed.",
    ["pipeline", "step"],
    buckets=HOST_COUNT_BUCKETS,
)
STEP_WEIGHT_MODIFICATION = Gauge(
    metric_name("filter_weigher_pipeline_step_weight_modification"),
    "Sum of what a weigher added to the weight of a host; only if switched on.",
    ["pipeline", "host", "step"],
    multiprocess_mode="sum",
)
STEP_SHIFT = Histogram(
    metric_name("filter_weigher_pipeline_step_shift_origin"),
    "Place before a weigher of the hosts it put on the first five places.",
    ["pipeline", "step", "outidx"],
    buckets=SHIFT_BUCKETS,
)
STEP_IMPACT = Histogram(
    metric_name("filter_weigher_pipeline_step_impact"),
    "How far a weigher moved hosts, times the difference in a statistic.",
    ["pipeline", "step", "stat", "unit"],
    buckets=IMPACT_BUCKETS,
)
STEP_EVENTS = Counter(
    metric_name("filter_weigher_pipeline_step_events_total"),
    "Things that steps noticed; detail holds the event's own labels as name=text.",
    ["pipeline", "step", "event", "detail"],
)
QUOTA_DECISIONS = Counter(
    metric_name("nova_filter_quota_enforcement_decisions_total"),
    "What the quota filter thought of requests.",
    QUOTA_LABELS,
)
PLACEMENTS = Counter(
    metric_name("nova_placement_total"),
    "VMs placed, by whether a slot of their project took them.",
    ["flavor_group", "intent", "cr_slot"],
)
NO_HOST_FOUND = Counter(
    metric_name("nova_no_host_found_total"),
    "VMs refused, by why their project's commitment did not help.",
    ["cr_slot", "flavor_group", "intent"],
)


@lru_cache(maxsize=4096)
def _histogram(metric: Histogram, *labels: str) -> Histogram:
    """Return a metric of some labels; a call asks for a hundred, each of which takes a lock."""
    return metric.labels(*labels)


def observe_run(pipeline: str, *, seconds: float, hosts_in: int, hosts_out: int) -> None:
    """Count a run of a pipeline."""
    PIPELINE_REQUESTS.labels(pipeline=pipeline).inc()
    _histogram(PIPELINE_DURATION_SECONDS, pipeline).observe(seconds)
    _histogram(HOSTS_IN, pipeline).observe(hosts_in)
    _histogram(HOSTS_OUT, pipeline).observe(hosts_out)


def observe_removals(pipeline: str, removals: Iterable[tuple[str, int]]) -> None:
    """Count what each filter removed: pairs of step and number of hosts."""
    for step, removed in removals:
        _histogram(STEP_REMOVED, pipeline, step).observe(removed)


def observe_durations(pipeline: str, durations: Iterable[tuple[str, float]]) -> None:
    """Count how long steps took: pairs of step and seconds."""
    for step, seconds in durations:
        _histogram(STEP_DURATION_SECONDS, pipeline, step).observe(seconds)


def add_weight_modifications(
    pipeline: str, step: str, changes: Iterable[tuple[str, float]]
) -> None:
    """Add what a weigher did to the weight of hosts: pairs of host and contribution."""
    for host, contribution in changes:
        STEP_WEIGHT_MODIFICATION.labels(pipeline=pipeline, host=host, step=step).inc(contribution)


def count_event(
    pipeline: str, step: str, event: str, labels: Mapping[str, str], *, count: int = 1
) -> None:
    """Count what a step noticed; the quota filter's verdicts have a counter of their own."""
    if event == QUOTA_EVENT:
        QUOTA_DECISIONS.labels(**{name: labels.get(name, "") for name in QUOTA_LABELS}).inc(count)
        return
    detail = ",".join(
        f"{name}={text}"
        for name, text in sorted(labels.items())
        if name not in RESERVED_EVENT_LABELS
    )
    STEP_EVENTS.labels(pipeline=pipeline, step=step, event=event, detail=detail).inc(count)


def observe_shift(
    pipeline: str, step: str, *, origins: Sequence[int], impacts: Mapping[tuple[str, str], float]
) -> None:
    """Count how a weigher changed the order.

    Args:
        step: Name of the weigher.
        origins: Place before of the hosts on the first places now.
        impacts: (statistic, unit) -> impact.
    """
    for place, origin in enumerate(origins):
        _histogram(STEP_SHIFT, pipeline, step, str(place)).observe(origin)
    for (stat, unit), impact in impacts.items():
        _histogram(STEP_IMPACT, pipeline, step, stat, unit).observe(impact)
