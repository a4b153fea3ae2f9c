"""Metrics of over-subscribed hosts (spec commitments, 11, 20.1)."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import Counter
from prometheus_client.core import GaugeMetricFamily, Metric

from journal.kept_sums import kept_sums, read_sums
from journal.metrics import at_scrape, metric_name, scrape_cursor

EXCESS = kept_sums(
    "host_excess",
    """
SELECT host.name, room.zone, part.resource, part.excess
  FROM capacity_hostcapacity AS room
  JOIN hosts_host AS host ON host.id = room.host_id
 CROSS JOIN LATERAL (VALUES
       ('memory', room.allocated_memory_bytes + room.committed_memory_bytes
                  + room.failover_memory_bytes + room.in_flight_memory_bytes
                  - room.effective_memory_bytes),
       ('cpu', room.allocated_vcpus + room.committed_vcpus + room.failover_vcpus
               + room.in_flight_vcpus - room.effective_vcpus)
       ) AS part(resource, excess)
 WHERE room.oversubscribed_since IS NOT NULL AND part.excess > 0
 ORDER BY 1, 3
""",
)

EVICTED = Counter(
    metric_name("committed_resource_host_oversubscribed_evicted_reservations_total"),
    "Slots that lost their host because it was over-subscribed.",
    ["az"],
)
MOVED = Counter(
    metric_name("committed_resource_host_oversubscribed_moved_reservations_total"),
    "Slots that were moved to another host because theirs was over-subscribed.",
    ["az"],
)


class OversubscriptionCollector:
    """The excess of hosts that the guard has seen over-subscribed; gone once it is resolved."""

    def collect(self) -> Iterable[Metric]:
        """Return the gauge as of now.

        Raises:
            DatabaseError: The database does not answer, or not in time.
        """
        family = GaugeMetricFamily(
            metric_name("committed_resource_host_oversubscribed"),
            "What a host lacks for its VMs and reservations, in bytes or vCPUs.",
            labels=["host", "az", "resource"],
        )
        with scrape_cursor() as cursor:
            (rows,) = read_sums(cursor, EXCESS)
        for host, zone, resource, excess in rows:
            family.add_metric([host, zone, resource], float(excess))
        return [family]


def register() -> None:
    """Collect the gauge at every scrape of this process."""
    at_scrape(OversubscriptionCollector())
