"""Gauges of what providers have and what of it is allocated (spec placement, 10.2)."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client.core import GaugeMetricFamily, Metric

from journal.kept_sums import kept_sums, read_sums
from journal.metrics import at_scrape, scrape_cursor

SUMS = kept_sums(
    "placement_inventories",
    """
SELECT c.name, root.zone,
       sum(trunc((i.total - i.reserved) * i.allocation_ratio)),
       sum(i.used),
       count(*) FILTER (WHERE i.used > (i.total - i.reserved) * i.allocation_ratio)
  FROM placement_inventory i
  JOIN placement_resource_class c ON c.id = i.resource_class_id
  JOIN placement_provider p ON p.id = i.provider_id
  JOIN placement_provider root ON root.id = p.root_id
 GROUP BY c.name, root.zone
 ORDER BY c.name, root.zone
""",
)


class InventoryCollector:
    """Capacity, usage and over-commitment, by resource class and the zone of the tree's root."""

    def collect(self) -> Iterable[Metric]:
        """Return the gauges as last summed up.

        Raises:
            DatabaseError: The database does not answer, or not in time.
        """
        capacity = GaugeMetricFamily(
            "placement_capacity",
            "What can be allocated of a resource class in a zone.",
            labels=["resource_class", "az"],
        )
        used = GaugeMetricFamily(
            "placement_used",
            "What is allocated of a resource class in a zone.",
            labels=["resource_class", "az"],
        )
        excess: dict[str, int] = {}
        with scrape_cursor() as cursor:
            (rows,) = read_sums(cursor, SUMS)
        for name, zone, capacity_sum, used_sum, over in rows:
            capacity.add_metric([name, zone], float(capacity_sum))
            used.add_metric([name, zone], float(used_sum))
            excess[name] = excess.get(name, 0) + over
        overcommitted = GaugeMetricFamily(
            "placement_overcommitted_inventories",
            "Inventories of which more is allocated than there is.",
            labels=["resource_class"],
        )
        for name, count in excess.items():
            overcommitted.add_metric([name], count)
        return [capacity, used, overcommitted]


def register() -> None:
    """Collect the gauges at every scrape of this process."""
    at_scrape(InventoryCollector())
