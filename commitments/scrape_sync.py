"""When the syncer last succeeded, read from its rows when a scrape comes."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client.core import GaugeMetricFamily, Metric

from commitments.models import SyncOutcome, SyncRun
from commitments.services.sync_runs import SOURCE
from journal.metrics import at_scrape, metric_name


class SyncGauges:
    """Start of the last run that was a success; no series before the first."""

    def collect(self) -> Iterable[Metric]:
        """Return the gauge as of now.

        Raises:
            DatabaseError: The database does not answer.
        """
        gauge = GaugeMetricFamily(
            metric_name("committed_resource_syncer_last_success_timestamp_seconds"),
            "Start of the last run of the syncer that was a success.",
        )
        runs = SyncRun.objects.filter(source=SOURCE, outcome=SyncOutcome.SUCCESS)
        started_at = runs.order_by("-id").values_list("started_at", flat=True).first()
        if started_at is not None:
            gauge.add_metric([], started_at.timestamp())
        return [gauge]


def register() -> None:
    """Collect the gauge at every scrape."""
    at_scrape(SyncGauges())
