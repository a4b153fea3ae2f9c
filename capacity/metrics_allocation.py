"""How far the VM list differs from the source of what VMs take (design, "Data")."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from prometheus_client.core import GaugeMetricFamily, Metric

from capacity.ledger.allocated import DRIFT, LISTED, chosen_source, known_sources
from journal.kept_sums import kept_sums, read_sums
from journal.metrics import at_scrape, metric_name, scrape_cursor

#: Of one source: in how many hosts of a zone it differs, and by how much memory.
OF_SOURCE: Final = """
SELECT '{source}', drift.zone, count(*), sum(abs(drift.memory_bytes))
  FROM ({drift}) AS drift GROUP BY drift.zone
"""
#: That others have less than the VM list is no drift.
NOTHING: Final = "SELECT '', '', 0, 0 WHERE false"


def _drifts() -> str:
    """Return the statement of every source but the one in force."""
    if chosen_source() == LISTED:
        return NOTHING
    parts = (
        OF_SOURCE.format(source=name, drift=DRIFT.format(allocated=statement))
        for name, statement in sorted(known_sources().items())
        if name != chosen_source()
    )
    return " UNION ALL ".join(parts) + " ORDER BY 1, 2"


SUMS = kept_sums("allocation_drift", _drifts, lambda _: {"host_ids": None})


class AllocationDriftCollector:
    """Hosts of which another source says otherwise than the one in force.

    Nothing is told while the VM list is in force: that others have less is no drift there.
    """

    def collect(self) -> Iterable[Metric]:
        """Return the gauges as last summed up.

        Raises:
            DatabaseError: The database does not answer, or not in time.
        """
        labels = ["source", "az"]
        hosts = GaugeMetricFamily(
            metric_name("host_allocation_drift_hosts"),
            "Hosts of which a source says otherwise than the one in force.",
            labels=labels,
        )
        memory = GaugeMetricFamily(
            metric_name("host_allocation_drift_bytes"),
            "Memory by which a source differs from the one in force, added up over hosts.",
            labels=labels,
        )
        if chosen_source() == LISTED:
            return [hosts, memory]
        with scrape_cursor() as cursor:
            (rows,) = read_sums(cursor, SUMS)
        for source, zone, count, memory_bytes in rows:
            hosts.add_metric([source, zone], count)
            memory.add_metric([source, zone], memory_bytes)
        return [hosts, memory]


def register() -> None:
    """Collect the gauges at every scrape of this process."""
    at_scrape(AllocationDriftCollector())
