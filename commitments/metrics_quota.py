"""Metrics of the quota controller (spec liquid, 18)."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import Counter, Histogram
from prometheus_client.core import GaugeMetricFamily, Metric

from capacity.metrics_limits import tells_projects
from journal.kept_sums import kept_sums, read_sums
from journal.metrics import at_scrape, metric_name, scrape_cursor

RESULTS = ("success", "failure")

RECONCILE_SECONDS = Histogram(
    metric_name("quota_reconcile_duration_seconds"),
    "Duration of counting the usage of all quota rows.",
    buckets=tuple(0.1 * 2**power for power in range(10)),
)
RECONCILE_TOTAL = Counter(
    metric_name("quota_reconcile_total"), "Runs over all quota rows by result.", ["result"]
)
for _result in RESULTS:
    RECONCILE_TOTAL.labels(result=_result)

USAGES = """
SELECT CASE WHEN %(tells_projects)s THEN quota.project_id ELSE '' END, quota.zone, used.key,
       sum(used.value::bigint)::bigint,
       sum(coalesce((quota.payg_usage ->> used.key)::bigint, 0))::bigint
  FROM capacity_projectquota AS quota CROSS JOIN LATERAL jsonb_each_text(quota.total_usage) AS used
 GROUP BY 1, 2, 3 ORDER BY 1, 2, 3
"""
SUMS = kept_sums("quota_usages", USAGES, lambda cursor: {"tells_projects": tells_projects(cursor)})
GAUGES = (
    ("quota_total_usage", "Usage of a project's VMs; memory in GiB."),
    ("quota_payg_usage", "Usage that no commitment covers; memory in GiB."),
    ("quota_cr_usage", "Usage that commitments cover; memory in GiB."),
)


class QuotaGauges:
    """Usage of projects with quota, from the rows at every scrape: rows that go take it along."""

    def collect(self) -> Iterable[Metric]:
        """Return the gauges as of the last count.

        Raises:
            DatabaseError: The database does not answer within 10 s.
        """
        labels = ("project_id", "availability_zone", "resource")
        total, payg, covered = (
            GaugeMetricFamily(metric_name(name), text, labels=labels) for name, text in GAUGES
        )
        with scrape_cursor() as cursor:
            (rows,) = read_sums(cursor, SUMS)
        for *at, total_usage, payg_usage in rows:
            total.add_metric(at, total_usage)
            payg.add_metric(at, payg_usage)
            covered.add_metric(at, total_usage - payg_usage)
        return [total, payg, covered]


def register() -> None:
    """Collect the gauges at every scrape."""
    at_scrape(QuotaGauges())
