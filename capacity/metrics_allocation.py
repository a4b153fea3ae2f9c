"""How far the VM list differs from the source of what VMs take (design, "Data")."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from prometheus_client.core import GaugeMetricFamily, Metric

from capacity.services.allocated import LISTED, chosen_source, drift_from, known_sources
from journal.metrics import at_scrape, metric_name, scrape_cursor


class AllocationDriftCollector:
    """Hosts of which another source says otherwise than the one in force.

    Nothing is told while the VM list is in force: that others have less is no drift there.
    """

    def collect(self) -> Iterable[Metric]:
        """Return the gauges as of now.

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
        chosen = chosen_source()
        if chosen == LISTED:
            return [hosts, memory]
        with scrape_cursor():
            drifts = {name: drift_from(name) for name in known_sources() if name != chosen}
        for source, found in drifts.items():
            counts: dict[str, int] = defaultdict(int)
            amounts: dict[str, int] = defaultdict(int)
            for drift in found:
                counts[drift.zone] += 1
                amounts[drift.zone] += abs(drift.memory_bytes)
            for zone in sorted(counts):
                hosts.add_metric([source, zone], counts[zone])
                memory.add_metric([source, zone], amounts[zone])
        return [hosts, memory]


def register() -> None:
    """Collect the gauges at every scrape of this process."""
    at_scrape(AllocationDriftCollector())
