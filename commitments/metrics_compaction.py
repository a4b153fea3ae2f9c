"""Metrics of runs that free hosts (spec commitments, 25 item 9), present from the start."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import Counter
from prometheus_client.core import GaugeMetricFamily, Metric

from commitments.models import CompactionOutcome, CompactionRun
from journal.metrics import at_scrape, metric_name

HOSTS_FREED = Counter(
    metric_name("committed_resource_compaction_hosts_freed_total"),
    "Hosts that became free because empty slots moved.",
)
SLOTS_COMPACTED = Counter(
    metric_name("committed_resource_compaction_slots_moved_total"),
    "Empty slots that moved so that a host became free.",
)
RUNS = Counter(
    metric_name("committed_resource_compaction_runs_total"),
    "Runs that free hosts, by how they ended.",
    ["outcome"],
)
for _outcome in CompactionOutcome.values:
    RUNS.labels(outcome=_outcome)


def count_release(slots_moved: int) -> None:
    """Count a host that became free."""
    HOSTS_FREED.inc()
    SLOTS_COMPACTED.inc(slots_moved)


class CompactionGauges:
    """When the last runs of each zone ended, and whether they were refused."""

    def collect(self) -> Iterable[Metric]:
        """Return the gauges as of now.

        Raises:
            DatabaseError: The database does not answer.
        """
        ended = GaugeMetricFamily(
            metric_name("committed_resource_compaction_last_run_timestamp_seconds"),
            "End of the last run that frees hosts, however it ended.",
            labels=("availability_zone",),
        )
        refused = GaugeMetricFamily(
            metric_name("committed_resource_compaction_refused"),
            "Whether the last run that frees hosts did not believe what is known of VMs and hosts.",
            labels=("availability_zone",),
        )
        last = CompactionRun.objects.filter(finished_at__isnull=False).order_by("zone", "-id")
        for run in last.distinct("zone"):
            if run.finished_at is not None:
                ended.add_metric([run.zone], run.finished_at.timestamp())
            refused.add_metric([run.zone], run.outcome == CompactionOutcome.REFUSED)
        return [ended, refused]


def register() -> None:
    """Collect the gauges at every scrape."""
    at_scrape(CompactionGauges())
