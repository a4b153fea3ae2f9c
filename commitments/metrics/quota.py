"""Metrics of the quota controller (spec liquid, 18)."""

from __future__ import annotations

from prometheus_client import Histogram

from journal.metrics import metric_name
from journal.readings import counter

RESULTS = ("success", "failure")

RECONCILE_SECONDS = Histogram(
    metric_name("quota_reconcile_duration_seconds"),
    "Duration of counting the usage of all quota rows.",
    buckets=tuple(0.1 * 2**power for power in range(10)),
)
RECONCILE_TOTAL = counter(
    "quota_reconcile_total",
    "Runs over all quota rows by result.",
    result=RESULTS,
)
