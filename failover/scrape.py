"""Gauges of coverage, read from the rows when a scrape comes (spec failover, 14.2)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from django.db import connection, transaction
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from journal.metrics import at_scrape, metric_name

SCRAPE_LIMIT_MILLISECONDS = 10_000
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
       greatest(0, coalesce(extract(epoch FROM now() - min(slot.last_changed_at) FILTER (
           WHERE slot.acknowledged_at IS NULL OR slot.acknowledged_at < slot.last_changed_at)), 0))
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

USERS = """
SELECT held.zone, count(DISTINCT held.id), count(vm.id), {counts}
  FROM (SELECT slot.id, slot.zone, count(vm.id) AS users
          FROM capacity_reservation AS slot
          LEFT JOIN capacity_reservationallocation AS vm ON vm.reservation_id = slot.id
         WHERE slot.kind = 'failover' GROUP BY slot.id, slot.zone) AS held
  LEFT JOIN capacity_reservationallocation AS vm ON vm.reservation_id = held.id
 GROUP BY 1 ORDER BY 1
"""


class CoverageCollector:
    """Coverage per zone; zones and reasons that are gone leave no series behind."""

    def collect(self) -> Iterable[Metric]:
        """Return the metrics as of now.

        Raises:
            DatabaseError: The database does not answer, or not in time.
        """
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute(
                "SELECT set_config('statement_timeout', %s, true)", [str(SCRAPE_LIMIT_MILLISECONDS)]
            )
            read = {}
            for name, statement in (
                ("uncovered", UNCOVERED),
                ("reserved", RESERVED),
                ("oldest", OLDEST_UNACKNOWLEDGED),
                ("simulated", SIMULATED),
                ("accounts", ACCOUNTS),
                ("moves", MOVES),
                ("users", _users_statement()),
            ):
                cursor.execute(statement)
                read[name] = cursor.fetchall()
        accounts = read["accounts"]
        return [
            _gauge(
                "vms_uncovered",
                "VMs with fewer slots than they need.",
                read["uncovered"],
                ("az", "reason"),
            ),
            _gauge("reserved_bytes", "Memory of failover slots.", read["reserved"]),
            _gauge(
                "reserved_lower_bound_bytes",
                "Memory that no plan with full coverage can stay below.",
                [(zone, bound) for zone, _, _, _, _, bound in accounts],
            ),
            _gauge(
                "oldest_unacknowledged_seconds",
                "How long the scheduler has not agreed to the slot that waits longest.",
                read["oldest"],
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
            _users(read["users"]),
        ]


def _users_statement() -> str:
    counts = ", ".join(
        f"count(DISTINCT held.id) FILTER (WHERE held.users <= {bound})" for bound in USER_BUCKETS
    )
    return USERS.format(counts=counts)


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
