"""Gauges of what providers have and what of it is allocated (spec placement, 10.2)."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Final

from django.db import connection, transaction
from prometheus_client.core import GaugeMetricFamily, Metric

from journal.metrics import at_scrape

SCRAPE_LIMIT_MILLISECONDS: Final = 5_000
#: Every inventory is read for these; scrapes within this time share what was read.
READ_EVERY_SECONDS: Final = 60.0

SUMS = """
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
"""
Sums = Sequence[tuple[str, str, float, float, int]]


class InventoryCollector:
    """Capacity, usage and over-commitment, by resource class and the zone of the tree's root."""

    def __init__(self, read_every_seconds: float = READ_EVERY_SECONDS) -> None:
        self._read_every_seconds = read_every_seconds
        self._known: tuple[float, Sums] | None = None

    def collect(self) -> Iterable[Metric]:
        """Return the gauges, at most a minute old.

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
        for name, zone, capacity_sum, used_sum, over in self._sums():
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

    def _sums(self) -> Sums:
        now = time.monotonic()
        if self._known is not None and now - self._known[0] < self._read_every_seconds:
            return self._known[1]
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute(
                "SELECT set_config('statement_timeout', %s, true)", [str(SCRAPE_LIMIT_MILLISECONDS)]
            )
            cursor.execute(SUMS)
            sums: Sums = cursor.fetchall()
        self._known = (now, sums)
        return sums


def register() -> None:
    """Collect the gauges at every scrape of this process."""
    at_scrape(InventoryCollector())
