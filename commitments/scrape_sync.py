"""How the syncer and region imports went, read from their rows when a scrape comes."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client.core import GaugeMetricFamily, Metric

from commitments.models import SyncOutcome
from commitments.services import import_runs, sync_runs
from journal.metrics import at_scrape, metric_name


class SyncGauges:
    """When the last good runs began, and what the last ones met; none before the first."""

    def collect(self) -> Iterable[Metric]:
        """Return the gauges as of now.

        Raises:
            DatabaseError: The database does not answer.
        """
        gauge = GaugeMetricFamily(
            metric_name("committed_resource_syncer_last_success_timestamp_seconds"),
            "Start of the last run of the syncer that was a success.",
        )
        started_at = sync_runs.last_success_at(sync_runs.SOURCE)
        if started_at is not None:
            gauge.add_metric([], started_at.timestamp())
        lost = GaugeMetricFamily(
            metric_name("committed_resource_syncer_nothing_understood"),
            "Whether the last run was told of commitments for us and understood none.",
        )
        if (is_lost := sync_runs.understood_nothing()) is not None:
            lost.add_metric([], is_lost)
        return [gauge, lost, *_of_imports()]


def _of_imports() -> Iterable[Metric]:
    imported = GaugeMetricFamily(
        metric_name("region_import_last_success_timestamp_seconds"),
        "Start of the last region import that was a success.",
    )
    refused = GaugeMetricFamily(
        metric_name("region_import_refused"),
        "Whether the last region import met a list that shrank too much to be believed.",
    )
    started_at, last = sync_runs.last_success_at(import_runs.SOURCE), import_runs.last_import()
    if started_at is not None:
        imported.add_metric([], started_at.timestamp())
    if last is not None:
        refused.add_metric([], last.outcome == SyncOutcome.GUARDED)
    return [imported, refused]


def register() -> None:
    """Collect the gauge at every scrape."""
    at_scrape(SyncGauges())
