"""Commitment gauges, read from the rows when a scrape comes (spec commitments, 20.1)."""

from __future__ import annotations

from collections.abc import Iterable

from django.db import connection, transaction
from prometheus_client.core import GaugeMetricFamily, Metric

from journal.metrics import at_scrape, metric_name

SCRAPE_LIMIT_MILLISECONDS = 10_000

UNFULFILLED = """
SELECT flavor_group_name, resource_type, zone, count(*)
  FROM commitments_commitment
 WHERE ready_reason = 'Reserving' AND NOT allow_rejection
 GROUP BY 1, 2, 3 ORDER BY 1, 2, 3
"""


class CommitmentGauges:
    """Commitments that wait for capacity they were promised; no series means none."""

    def collect(self) -> Iterable[Metric]:
        """Return the gauges as of now.

        Raises:
            DatabaseError: The database does not answer within 10 s.
        """
        gauge = GaugeMetricFamily(
            metric_name("committed_resource_unfulfilled"),
            "Commitments that could not be placed yet and may not be rejected.",
            labels=("flavor_group", "resource_type", "availability_zone"),
        )
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute(
                "SELECT set_config('statement_timeout', %s, true)", [str(SCRAPE_LIMIT_MILLISECONDS)]
            )
            cursor.execute(UNFULFILLED)
            for group, resource_type, zone, count in cursor.fetchall():
                gauge.add_metric([group, resource_type, zone], count)
        return [gauge]


def register() -> None:
    """Collect the gauges at every scrape."""
    at_scrape(CommitmentGauges())
