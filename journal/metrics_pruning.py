"""Metrics of forgetting."""

from __future__ import annotations

from prometheus_client import Counter

from journal.metrics import metric_name
from journal.models import PrunedLog

PRUNED_ROWS = Counter(
    metric_name("journal_pruned_rows_total"),
    "Entries of a log that were forgotten past their retention.",
    ("log",),
)
for _log in PrunedLog.Log.values:
    PRUNED_ROWS.labels(log=_log)
