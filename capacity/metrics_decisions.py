"""Counters of decision records (spec scheduling, 10.5)."""

from __future__ import annotations

from prometheus_client import Counter

from journal.metrics import metric_name

DECISIONS_LOST = Counter(
    metric_name("scheduling_decisions_lost_total"),
    "Scheduling decisions that were made and carried out but could not be recorded.",
)
