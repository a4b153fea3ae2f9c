"""Who does the background work, and whether its queues move, read when a scrape comes."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client.core import GaugeMetricFamily, Metric

from journal.leases import BEAT_LEASE
from journal.metrics import metric_name, scrape_cursor

#: Age of the heartbeat of a queue from which nobody works it off: a task of it may take so long.
QUEUE_LIMITS_SECONDS = {"queue:steady": 1800, "queue:long": 7200}
SILENCE = """
SELECT name, extract(epoch FROM clock_timestamp() - beaten_at)::float8
  FROM journal_heartbeat WHERE name = 'beat' OR name LIKE 'queue:%%' ORDER BY name
"""
LEASES = """
SELECT coalesce(max(extract(epoch FROM clock_timestamp() - renewed_at))
                  FILTER (WHERE name = %(beat)s), 0)::float8,
       coalesce(max(extract(epoch FROM clock_timestamp() - taken_at))
                  FILTER (WHERE name <> %(beat)s AND expires_at > clock_timestamp()), 0)::float8,
       coalesce(max(epoch) FILTER (WHERE name = %(beat)s), 0)
  FROM journal_lease
"""


class WorkCollector:
    """Ages of the heartbeats that went through each queue, and of leases."""

    def collect(self) -> Iterable[Metric]:
        """Return what the rows say; a queue that was never worked off has no series."""
        with scrape_cursor() as cursor:
            cursor.execute(SILENCE, {})
            ages = cursor.fetchall()
            cursor.execute(LEASES, {"beat": BEAT_LEASE})
            silent, longest, epoch = cursor.fetchone() or (0.0, 0.0, 0)
        queues = GaugeMetricFamily(
            metric_name("worker_queue_silence_seconds"),
            "Time since a worker last took the heartbeat that waits in a queue.",
            labels=["queue"],
        )
        for name, age in ages:
            queues.add_metric(["soon" if name == "beat" else name.partition(":")[2]], age)
        yield queues
        yield GaugeMetricFamily(
            metric_name("beat_lease_age_seconds"),
            "Time since the acting beat last renewed its lease.",
            value=silent,
        )
        yield GaugeMetricFamily(
            metric_name("beat_lease_epoch"),
            "How often another beat became the acting one; a steady growth means that they die.",
            value=int(epoch),
        )
        yield GaugeMetricFamily(
            metric_name("run_lease_longest_seconds"),
            "How long the oldest run that is under way has held its lease; 0 without one.",
            value=longest,
        )
