"""How far the clocks of our processes deviate, read when a scrape comes."""

from __future__ import annotations

from collections.abc import Iterable

from django.conf import settings
from prometheus_client.core import GaugeMetricFamily, Metric

from journal.clock import LOOK_SECONDS
from journal.metrics import metric_name, scrape_cursor

#: A process that looked so long ago has ended, or has had nothing to do.
RECENT_SECONDS = 12 * LOOK_SECONDS
DEVIATIONS = """
SELECT coalesce(max(abs(deviation_seconds)), 0),
       count(*) FILTER (WHERE abs(deviation_seconds) > %(refuse)s)
  FROM journal_processclock
 WHERE looked_at > now() - make_interval(secs => %(recent)s)
"""


class ClockCollector:
    """The worst deviation, and how many processes refuse work for theirs."""

    def collect(self) -> Iterable[Metric]:
        """Return both gauges; 0 when no process looked of late."""
        limits = {"refuse": settings.HEADROOM.clock_refuse_seconds, "recent": RECENT_SECONDS}
        with scrape_cursor() as cursor:
            cursor.execute(DEVIATIONS, limits)
            worst, refusing = cursor.fetchone() or (0.0, 0)
        yield GaugeMetricFamily(
            metric_name("clock_deviation_seconds"),
            "Largest deviation of a process's clock from the database's in the last two minutes.",
            value=float(worst),
        )
        yield GaugeMetricFamily(
            metric_name("clock_refusing_processes"),
            "Processes that refuse tasks because their clock is off.",
            value=int(refusing),
        )
