"""Gauges of coverage, read from the rows when a scrape comes (spec failover, 14.2)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from journal.kept_sums import kept_sums, read_sums
from journal.metrics import at_scrape, metric_name, scrape_cursor

USER_BUCKETS: Final = (0, 1, 2, 5, 10, 15, 20, 30, 40)

Rows = Sequence[Sequence[object]]

UNCOVERED = """
SELECT zone, reason, count(*) FROM failover_failoverdecision GROUP BY 1, 2 ORDER BY 1, 2
"""

RESERVED = """
SELECT zone, sum(memory_bytes) FROM capacity_reservation
 WHERE kind = 'failover' GROUP BY 1 ORDER BY 1
"""

OLDEST_UNACKNOWLEDGED = """
SELECT held.zone,
       extract(epoch FROM min(slot.last_changed_at) FILTER (
           WHERE slot.acknowledged_at IS NULL OR slot.acknowledged_at < slot.last_changed_at)
       )::float8
  FROM failover_failoverreservation AS slot
  JOIN capacity_reservation AS held ON held.id = slot.reservation_id
 GROUP BY 1 ORDER BY 1
"""

SIMULATED = """
SELECT DISTINCT ON (zone, scope) zone, scope, unprotected_vms FROM failover_failuredrill
 ORDER BY zone, scope, id DESC
"""

ACCOUNTS = """
SELECT zone, owed_vms, uncovered_vms, owed_vm_seconds, uncovered_vm_seconds, lower_bound_bytes
  FROM failover_coverageaccount ORDER BY zone
"""

MOVES = """
SELECT plan.zone, move.state, count(*)
  FROM failover_evacuationmove AS move
  JOIN failover_evacuationplan AS plan ON plan.id = move.plan_id
 WHERE plan.state = 'open' GROUP BY 1, 2 ORDER BY 1, 2
"""

AT_MOST = ", ".join(f"count(*) FILTER (WHERE users <= {bound})" for bound in USER_BUCKETS)
USERS = f"""
SELECT zone, count(*), sum(users), {AT_MOST}
  FROM (SELECT slot.zone, count(vm.id) AS users
          FROM capacity_reservation AS slot
          LEFT JOIN capacity_reservationallocation AS vm ON vm.reservation_id = slot.id
         WHERE slot.kind = 'failover' GROUP BY slot.id) AS held
 GROUP BY 1 ORDER BY 1
"""  # noqa: S608 - constants only

SUMS: Final = (
    kept_sums("failover_uncovered", UNCOVERED),
    kept_sums("failover_reserved", RESERVED),
    kept_sums("failover_oldest_unacknowledged", OLDEST_UNACKNOWLEDGED),
    kept_sums("failover_users", USERS),
)
NOW = "SELECT extract(epoch FROM now())::float8"

#: What the last run of a zone counted, by the suffix of its gauge.
RUN_GAUGES: Final = (
    ("total_vms", "VMs that the last run saw."),
    ("total_reservations", "Failover reservations after the last run."),
    ("vms_missing_failover", "VMs that lacked reservations before the last run's work."),
)
# Zones come from their hosts: one in which no run ever ended must be told as well.
LAST_RUNS = """
SELECT zone.name, coalesce(extract(epoch FROM run.finished_at), 0),
       run.counts ->> 'total_vms', run.counts ->> 'total_reservations',
       run.counts ->> 'vms_missing_failover'
  FROM (SELECT DISTINCT zone AS name FROM hosts_host WHERE zone <> '') AS zone
  LEFT JOIN LATERAL (
        SELECT finished_at, counts FROM failover_failoverrun AS one
         WHERE one.zone = zone.name AND outcome = 'done' AND NOT is_dry_run
         ORDER BY id DESC LIMIT 1) AS run ON true
 ORDER BY 1
"""


class LastRunCollector:
    """When the loop last completed a run in each zone, and what it found there."""

    def collect(self) -> Iterable[Metric]:
        """Return the metrics as of now.

        Raises:
            DatabaseError: The database does not answer, or not in time.
        """
        with scrape_cursor() as cursor:
            cursor.execute(LAST_RUNS)
            rows = cursor.fetchall()
        ended = GaugeMetricFamily(
            metric_name("failover_reconciliation_last_run_timestamp_seconds"),
            "End of the last run of the loop that was completed; 0 before the first.",
            labels=["availability_zone"],
        )
        found = [
            GaugeMetricFamily(
                metric_name(f"failover_reconciliation_{suffix}"),
                words,
                labels=["availability_zone"],
            )
            for suffix, words in RUN_GAUGES
        ]
        for zone, ended_at, *counts in rows:
            ended.add_metric([zone], float(ended_at))
            for family, count in zip(found, counts, strict=True):
                if count is not None:
                    family.add_metric([zone], float(count))
        return [ended, *found]


class CoverageCollector:
    """Coverage per zone; zones and reasons that are gone leave no series behind."""

    def collect(self) -> Iterable[Metric]:
        """Return the metrics as of now.

        Raises:
            DatabaseError: The database does not answer, or not in time.
        """
        with scrape_cursor() as cursor:
            read = {}
            for name, statement in (
                ("simulated", SIMULATED),
                ("accounts", ACCOUNTS),
                ("moves", MOVES),
                ("now", NOW),
            ):
                cursor.execute(statement)
                read[name] = cursor.fetchall()
            uncovered, reserved, unacknowledged, users = read_sums(cursor, *SUMS)
        ((now,),) = read["now"]
        accounts = read["accounts"]
        return [
            _gauge(
                "vms_uncovered",
                "VMs with fewer slots than they need.",
                uncovered,
                ("az", "reason"),
            ),
            _gauge("reserved_bytes", "Memory of failover slots.", reserved),
            _gauge(
                "reserved_lower_bound_bytes",
                "Memory that no plan with full coverage can stay below.",
                [(zone, bound) for zone, _, _, _, _, bound in accounts],
            ),
            _gauge(
                "oldest_unacknowledged_seconds",
                "How long the scheduler has not agreed to the slot that waits longest.",
                [
                    (zone, 0 if since is None else max(0, now - since))
                    for zone, since in unacknowledged
                ],
            ),
            _gauge(
                "simulation_unprotected_vms",
                "VMs that a failure of the scope leaves without a slot, at the last drill.",
                read["simulated"],
                ("az", "scope"),
            ),
            _gauge(
                "owed_vms", "VMs that slots are owed to.", [(row[0], row[1]) for row in accounts]
            ),
            _gauge(
                "evacuation_moves",
                "VMs of evacuations under way.",
                read["moves"],
                ("az", "state"),
            ),
            _counter(
                "owed_vm_seconds",
                "Time that VMs were owed slots, summed over VMs.",
                [(row[0], row[3]) for row in accounts],
            ),
            _counter(
                "uncovered_vm_seconds",
                "Time that VMs had fewer slots than owed to them, summed over VMs.",
                [(row[0], row[4]) for row in accounts],
            ),
            _users(users),
        ]


def _gauge(
    suffix: str, words: str, rows: Rows, labels: Sequence[str] = ("az",)
) -> GaugeMetricFamily:
    family = GaugeMetricFamily(metric_name(f"failover_{suffix}"), words, labels=list(labels))
    for row in rows:
        family.add_metric([str(label) for label in row[:-1]], float(str(row[-1])))
    return family


def _counter(suffix: str, words: str, rows: Rows) -> CounterMetricFamily:
    family = CounterMetricFamily(metric_name(f"failover_{suffix}"), words, labels=["az"])
    for zone, amount in rows:
        family.add_metric([str(zone)], float(str(amount)))
    return family


def _users(rows: Rows) -> HistogramMetricFamily:
    family = HistogramMetricFamily(
        metric_name("failover_slots_users"), "Slots by how many VMs share them.", labels=["az"]
    )
    for zone, slots, users, *counts in rows:
        buckets = [
            (str(float(bound)), float(str(count)))
            for bound, count in zip(USER_BUCKETS, counts, strict=True)
        ]
        family.add_metric(
            [str(zone)],
            buckets=[*buckets, ("+Inf", float(str(slots)))],
            sum_value=float(str(users)),
        )
    return family


def register() -> None:
    """Collect these metrics at every scrape of this process."""
    at_scrape(CoverageCollector())
    at_scrape(LastRunCollector())
