"""Metrics of the failover loop and of validation (spec failover, 14.2).

The names are those of the reference. Every series exists from the start of the process under the
empty zone; runs are recorded under their zone. What the last run found is a fact of its row, read
at a scrape: the gauge of a worker that ran last an hour ago would still tell it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from django.db.backends.utils import CursorWrapper
from prometheus_client import Counter, Histogram
from prometheus_client.core import HistogramMetricFamily, Metric

from failover.domain.plan import RunFigures
from journal.kept_sums import Rows, kept_sums, read_sums
from journal.metrics import metric_name
from journal.readings import Reading, Scraped, gauge, total

ZONE_LABEL: Final = "availability_zone"
RUN_BUCKETS_SECONDS: Final = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
VALIDATION_BUCKETS_SECONDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1, 2.5, 10)


def _name(suffix: str) -> str:
    return metric_name(f"failover_reconciliation_{suffix}")


RUNS = Counter(_name("runs_total"), "Runs of the loop that were completed.", [ZONE_LABEL])
RUN_SECONDS = Histogram(
    _name("duration_seconds"),
    "Duration of a run of the loop.",
    [ZONE_LABEL],
    buckets=RUN_BUCKETS_SECONDS,
)
COUNTERS: Final[Mapping[str, Counter]] = {
    field: Counter(_name(f"{suffix}_total"), words, [ZONE_LABEL])
    for field, suffix, words in (
        ("vms_processed", "vms_processed", "VMs that runs handled."),
        ("reservations_needed", "reservations_needed", "Reservations that handled VMs lacked."),
        ("reused", "reservations_reused", "Existing reservations that VMs joined."),
        ("created", "reservations_created", "Reservations that were created."),
        ("failed", "reservations_failed", "Needs that could not be met."),
        ("reservations_updated", "reservations_updated", "Reservations that lost users."),
        ("reservations_deleted", "reservations_deleted", "Empty reservations that were deleted."),
    )
}
VALIDATION_SECONDS = Histogram(
    metric_name("failover_validation_seconds"),
    "Time to ask the scheduler about all users of a reservation.",
    buckets=VALIDATION_BUCKETS_SECONDS,
)
VALIDATION_FAILURES = Counter(
    metric_name("failover_validation_failures_total"),
    "Users that could not be evacuated to their reservation, by the filter that removed the host.",
    ["az", "filter"],
)


def show_zones(zones: Iterable[str]) -> None:
    """Make every series of the loop exist for some zones, at zero."""
    for zone in zones:
        for metric in (RUNS, RUN_SECONDS, *COUNTERS.values()):
            metric.labels(**{ZONE_LABEL: zone})


def observe_run(figures: RunFigures, *, seconds: float, zone: str = "") -> None:
    """Record one completed run; one that was aborted, skipped or dry is not recorded.

    Args:
        figures: What it counted.
    """
    RUNS.labels(**{ZONE_LABEL: zone}).inc()
    RUN_SECONDS.labels(**{ZONE_LABEL: zone}).observe(seconds)
    for field, counter in COUNTERS.items():
        counter.labels(**{ZONE_LABEL: zone}).inc(getattr(figures, field))


USER_BUCKETS: Final = (0, 1, 2, 5, 10, 15, 20, 30, 40)
AZ: Final = ("az",)

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
SELECT zone, owed_vms, lower_bound_bytes, owed_vm_seconds, uncovered_vm_seconds
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
USER_SUMS: Final = kept_sums("failover_users", USERS)
UNACKNOWLEDGED: Final = kept_sums("failover_oldest_unacknowledged", OLDEST_UNACKNOWLEDGED)

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


def _unacknowledged_seconds(cursor: CursorWrapper) -> Rows:
    cursor.execute("SELECT extract(epoch FROM now())::float8")
    ((now,),) = cursor.fetchall()
    return [
        (zone, 0 if since is None else max(0, now - since))
        for zone, since in read_sums(cursor, UNACKNOWLEDGED)[0]
    ]


def _users(cursor: CursorWrapper) -> list[Metric]:
    family = HistogramMetricFamily(
        metric_name("failover_slots_users"), "Slots by how many VMs share them.", labels=AZ
    )
    bounds = [*(str(float(bound)) for bound in USER_BUCKETS), "+Inf"]
    for zone, slots, users, *counts in read_sums(cursor, USER_SUMS)[0]:
        buckets = [
            (bound, float(count)) for bound, count in zip(bounds, (*counts, slots), strict=True)
        ]
        family.add_metric([zone], buckets=buckets, sum_value=float(users))
    return [family]


COVERAGE: Final = Scraped(
    "coverage",
    Reading(
        kept_sums("failover_uncovered", UNCOVERED),
        (*AZ, "reason"),
        (gauge("failover_vms_uncovered", "VMs with fewer slots than they need."),),
    ),
    Reading(
        kept_sums("failover_reserved", RESERVED),
        AZ,
        (gauge("failover_reserved_bytes", "Memory of failover slots."),),
    ),
    Reading(
        _unacknowledged_seconds,
        AZ,
        (
            gauge(
                "failover_oldest_unacknowledged_seconds",
                "How long the scheduler has not agreed to the slot that waits longest.",
            ),
        ),
    ),
    Reading(
        SIMULATED,
        (*AZ, "scope"),
        (
            gauge(
                "failover_simulation_unprotected_vms",
                "VMs that a failure of the scope leaves without a slot, at the last drill.",
            ),
        ),
    ),
    Reading(
        ACCOUNTS,
        AZ,
        (
            gauge("failover_owed_vms", "VMs that slots are owed to."),
            gauge(
                "failover_reserved_lower_bound_bytes",
                "Memory that no plan with full coverage can stay below.",
            ),
            total("failover_owed_vm_seconds", "Time that VMs were owed slots, summed over VMs."),
            total(
                "failover_uncovered_vm_seconds",
                "Time that VMs had fewer slots than owed to them, summed over VMs.",
            ),
        ),
    ),
    Reading(
        MOVES,
        (*AZ, "state"),
        (gauge("failover_evacuation_moves", "VMs of evacuations under way."),),
    ),
    _users,
)
LAST_RUN: Final = Scraped(
    "last_failover_runs",
    Reading(
        LAST_RUNS,
        (ZONE_LABEL,),
        (
            gauge(
                "failover_reconciliation_last_run_timestamp_seconds",
                "End of the last run of the loop that was completed; 0 before the first.",
            ),
            gauge("failover_reconciliation_total_vms", "VMs that the last run saw."),
            gauge(
                "failover_reconciliation_total_reservations",
                "Failover reservations after the last run.",
            ),
            gauge(
                "failover_reconciliation_vms_missing_failover",
                "VMs that lacked reservations before the last run's work.",
            ),
        ),
    ),
)
