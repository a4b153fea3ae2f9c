"""Metrics of the Placement API (spec placement, 10.2)."""

from __future__ import annotations

from functools import cache
from typing import Final

from prometheus_client import Counter, Histogram

from journal.metrics import metric_name

LOCAL: Final = "local"
LABELS = ("method", "pattern", "responsecode")

REQUEST_SECONDS = Histogram(
    metric_name("placement_shim_downstream_request_duration_seconds"),
    "Time to answer a request of the Placement API.",
    LABELS,
)
REQUESTS = Counter(
    "placement_requests_total",
    "Requests of the Placement API.",
    ("method", "pattern", "code", "mode"),
)
WRITE_SECONDS = Histogram(
    "placement_allocation_write_seconds",
    "Time to write allocations.",
    ("kind", "result"),
)
CONFLICTS = Counter(
    "placement_allocation_conflicts_total",
    "Allocation writes that were refused, by reason.",
    ("reason",),
)
CONFLICT_REASONS: Final = (
    "capacity",
    "constraint",
    "consumer_generation",
    "no_inventory",
    "retry_exhausted",
)
USAGE_DRIFT = Counter(
    "placement_usage_drift_total",
    "Inventories found whose used amount was not the sum of their allocations; must stay 0.",
)
for _reason in CONFLICT_REASONS:
    CONFLICTS.labels(reason=_reason)


@cache
def _request_metrics(method: str, pattern: str, status_code: int) -> tuple[Histogram, Counter]:
    code = str(status_code)
    return (
        REQUEST_SECONDS.labels(method=method, pattern=pattern, responsecode=code),
        REQUESTS.labels(method=method, pattern=pattern, code=code, mode=LOCAL),
    )


KNOWN_METHODS: Final = frozenset({"GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH"})


def observe_request(*, method: str, pattern: str, status_code: int, seconds: float) -> None:
    """Count an answered request."""
    known = method if method in KNOWN_METHODS else "other"
    duration, count = _request_metrics(known, pattern, status_code)
    duration.observe(seconds)
    count.inc()
