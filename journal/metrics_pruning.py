"""Metrics of forgetting."""

from __future__ import annotations

from prometheus_client import Counter

from journal.metrics import metric_name
from journal.models import PrunedLog

LOGS = (PrunedLog.Log.DELETIONS, PrunedLog.Log.OUTBOX)

PRUNED_ROWS = Counter(
    metric_name("journal_pruned_rows_total"),
    "Entries of a log that were forgotten past their retention.",
    ("log",),
)
for _log in LOGS:
    PRUNED_ROWS.labels(log=_log.value)
