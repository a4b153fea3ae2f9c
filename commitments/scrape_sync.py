"""How the syncer and region imports went, read from their rows when a scrape comes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from prometheus_client.core import GaugeMetricFamily, Metric

from commitments.models import SyncOutcome
from commitments.services import import_runs, sync_runs
from journal.metrics import at_scrape, metric_name, scrape_cursor

LAST = """
SELECT {value} FROM commitments_syncrun
 WHERE source = %({source})s AND finished_at IS NOT NULL{condition} ORDER BY id DESC LIMIT 1
"""
STARTED: Final = "extract(epoch FROM started_at)"
SUCCEEDED: Final = " AND outcome = %(success)s"
#: Name of a gauge, what it tells, and where in the last run of a source it is written.
GAUGES: Final = (
    (
        "committed_resource_syncer_last_success_timestamp_seconds",
        "Start of the last run of the syncer that was a success.",
        LAST.format(value=STARTED, source="syncer", condition=SUCCEEDED),
    ),
    (
        "committed_resource_syncer_nothing_understood",
        "Whether the last run was told of commitments for us and understood none.",
        LAST.format(
            value="(error_code = %(nothing_understood)s)::int", source="syncer", condition=""
        ),
    ),
    (
        "committed_resource_syncer_limes_commitments_active",
        "Commitments of the last run that are understood.",
        LAST.format(
            value="(counts ->> 'understood')::bigint",
            source="syncer",
            condition=" AND counts ? 'understood'",
        ),
    ),
    (
        "committed_resource_syncer_crd_unmatched",
        "Commitments here that Limes did not list in the last run and that are not over.",
        LAST.format(
            value="(counts ->> 'missing')::bigint",
            source="syncer",
            condition=" AND counts ? 'missing'",
        ),
    ),
    (
        "region_import_last_success_timestamp_seconds",
        "Start of the last region import that was a success.",
        LAST.format(value=STARTED, source="importer", condition=SUCCEEDED),
    ),
    (
        "region_import_refused",
        "Whether the last region import met a list that shrank too much to be believed.",
        LAST.format(value="(outcome = %(guarded)s)::int", source="importer", condition=""),
    ),
)
ALL: Final = "SELECT " + ", ".join(f"({statement})" for _, _, statement in GAUGES)


class SyncGauges:
    """When the last good runs began, and what the last ones met; none before the first."""

    def collect(self) -> Iterable[Metric]:
        """Return the gauges as of now.

        Raises:
            DatabaseError: The database does not answer, or not in time.
        """
        facts = {
            "syncer": sync_runs.SOURCE,
            "importer": import_runs.SOURCE,
            "success": SyncOutcome.SUCCESS.value,
            "guarded": SyncOutcome.GUARDED.value,
            "nothing_understood": sync_runs.NothingUnderstood.code,
        }
        with scrape_cursor() as cursor:
            cursor.execute(ALL, facts)
            (values,) = cursor.fetchall()
        for (name, words, _), value in zip(GAUGES, values, strict=True):
            family = GaugeMetricFamily(metric_name(name), words)
            if value is not None:
                family.add_metric([], float(value))
            yield family


def register() -> None:
    """Collect the gauges at every scrape."""
    at_scrape(SyncGauges())
