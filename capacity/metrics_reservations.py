"""Gauges of reservations of every kind and of hosts, under the reference's names.

They are summed up from the rows, twice a minute, so that what is gone leaves no series behind
(spec failover, 14.2; commitments, 20.1; hosts, "Host KPI").
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from django.db.backends.utils import CursorWrapper
from prometheus_client.core import GaugeMetricFamily, Metric

from capacity.metrics_limits import tells_hosts
from journal.kept_sums import Parameters, kept_sums, read_sums
from journal.metrics import at_scrape, metric_name, scrape_cursor

# The reason and not the message, which counts hosts and names VMs: label values must be few
# (spec commitments, 20.1 and Appendix B 20).
READY_WORDS = """
CASE WHEN held.is_ready THEN 'True' WHEN held.is_ready IS NULL THEN 'Unknown' ELSE 'False' END,
CASE WHEN held.is_ready = false THEN held.ready_reason ELSE '' END
"""

COUNTS = f"""
SELECT {READY_WORDS}, count(*) FROM capacity_reservation AS held GROUP BY 1, 2 ORDER BY 1, 2
"""  # noqa: S608 - constants only

STATES = """
SELECT held.scheduling_domain,
       CASE held.kind WHEN 'committed' THEN 'CommittedResourceReservation'
                      WHEN 'failover' THEN 'FailoverReservation'
                      WHEN 'in_flight' THEN 'InFlightReservation' END,
       CASE WHEN held.is_ready THEN 'ready' WHEN held.is_ready IS NULL THEN 'unknown'
            ELSE 'error' END,
       CASE WHEN held.is_ready IS NULL THEN '' ELSE held.ready_reason END, count(*)
  FROM capacity_reservation AS held GROUP BY 1, 2, 3, 4 ORDER BY 1, 2, 3, 4
"""

AMOUNTS = f"""
SELECT {READY_WORDS}, CASE WHEN %(tells_hosts)s THEN coalesce(host.name, '') ELSE '' END,
       part.resource, sum(part.amount)
  FROM capacity_reservation AS held
  LEFT JOIN hosts_host AS host ON host.id = coalesce(held.confirmed_host_id, held.target_host_id)
 CROSS JOIN LATERAL (VALUES ('memory', held.memory_bytes), ('cpu', held.vcpus))
       AS part(resource, amount)
 GROUP BY 1, 2, 3, 4 ORDER BY 1, 2, 3, 4
"""  # noqa: S608 - constants only

HOST_LABELS = (
    "compute_host",
    "availability_zone",
    "building_block",
    "cpu_architecture",
    "workload_type",
    "enabled",
    "decommissioned",
    "external_customer",
    "maintenance",
)

FIRST_AMOUNT = len(HOST_LABELS) + 1  # after the resource
MOST_EXCEEDED = 100

# Ready failover slots and ready committed slots on each host, the latter less the VMs in them; then
# the hosts, or their sums, and in the same pass those that promise more than they have.
HOST_USAGE = """
WITH seen AS (
    SELECT vm.reservation_id, sum(vm.memory_bytes) AS memory_bytes, sum(vm.vcpus) AS vcpus
      FROM capacity_reservation AS slot
      JOIN capacity_reservationallocation AS vm ON vm.reservation_id = slot.id
     WHERE slot.is_ready AND slot.kind = 'committed'
     GROUP BY vm.reservation_id
), held AS (
    SELECT coalesce(slot.confirmed_host_id, slot.target_host_id) AS host_id,
           sum(slot.memory_bytes) FILTER (WHERE slot.kind = 'failover') AS failover_memory,
           sum(slot.vcpus) FILTER (WHERE slot.kind = 'failover') AS failover_vcpus,
           sum(greatest(0, slot.memory_bytes - coalesce(seen.memory_bytes, 0)))
               FILTER (WHERE slot.kind = 'committed') AS reserved_memory,
           sum(greatest(0, slot.vcpus - coalesce(seen.vcpus, 0)))
               FILTER (WHERE slot.kind = 'committed') AS reserved_vcpus
      FROM capacity_reservation AS slot
      LEFT JOIN seen ON seen.reservation_id = slot.id
     WHERE slot.is_ready AND slot.kind IN ('failover', 'committed')
     GROUP BY 1
), used AS MATERIALIZED (
    SELECT host.name, host.zone, host.building_block,
           host.traits || host.custom_traits AS traits, host.maintenance,
           part.resource, part.total, part.utilized, part.reserved, part.failover
      FROM hosts_host AS host
      JOIN capacity_hostcapacity AS room ON room.host_id = host.id
      LEFT JOIN held ON held.host_id = host.id
     CROSS JOIN LATERAL (VALUES
           ('ram', coalesce(nullif(host.effective_memory_bytes, 0), host.total_memory_bytes),
            room.allocated_memory_bytes, coalesce(held.reserved_memory, 0),
            coalesce(held.failover_memory, 0)),
           ('cpu', coalesce(nullif(host.effective_vcpus, 0), host.total_vcpus),
            room.allocated_vcpus, coalesce(held.reserved_vcpus, 0),
            coalesce(held.failover_vcpus, 0))
           ) AS part(resource, total, utilized, reserved, failover)
     WHERE part.total > 0
), exceeded AS (
    SELECT name, zone, resource, utilized + reserved + failover - total AS lacking
      FROM used WHERE utilized + reserved + failover > total
     ORDER BY lacking DESC, name LIMIT %(most_exceeded)s
)
SELECT CASE WHEN %(tells_hosts)s THEN name ELSE '' END, zone,
       CASE WHEN NOT %(tells_hosts)s THEN ''
            ELSE coalesce(nullif(building_block, ''), 'unknown') END,
       CASE WHEN 'CUSTOM_HW_SAPPHIRE_RAPIDS' = ANY(traits)
            THEN 'sapphire-rapids' ELSE 'cascade-lake' END,
       CASE WHEN 'CUSTOM_HANA_EXCLUSIVE_HOST' = ANY(traits)
            THEN 'hana' ELSE 'general-purpose' END,
       'true',
       ('CUSTOM_DECOMMISSIONING' = ANY(traits))::text,
       ('CUSTOM_EXTERNAL_CUSTOMER_EXCLUSIVE' = ANY(traits))::text,
       (maintenance <> '')::text,
       resource, sum(total), sum(utilized), sum(reserved), sum(failover),
       sum(greatest(0, total - utilized - reserved - failover))
  FROM used GROUP BY 1, 2, 3, 4, 5, 6, 7, 8, 9, 10
 UNION ALL
SELECT name, zone, NULL, NULL, NULL, NULL, NULL, NULL, NULL, resource, lacking, 0, 0, 0, 0
  FROM exceeded
"""


def _how_finely(cursor: CursorWrapper) -> Parameters:
    return {"tells_hosts": tells_hosts(cursor)}


def _how_many_exceeded(cursor: CursorWrapper) -> Parameters:
    return {**_how_finely(cursor), "most_exceeded": MOST_EXCEEDED}


SUMS = (
    kept_sums("reservations", COUNTS),
    kept_sums("reservation_states", STATES),
    kept_sums("reservation_amounts", AMOUNTS, _how_finely),
    kept_sums("host_usage", HOST_USAGE, _how_many_exceeded),
)


class ReservationCollector:
    """Reservations of every kind by readiness and host, and what fills each host."""

    def collect(self) -> Iterable[Metric]:
        """Return the gauges as of now.

        Raises:
            DatabaseError: The database does not answer, or not in time.
        """
        with scrape_cursor() as cursor:
            counts, states, amounts, rows = read_sums(cursor, *SUMS)
        usage = sorted((row for row in rows if row[2] is not None), key=_order)
        return [
            _family("reservations", "Reservations of every kind.", READY_LABELS, counts),
            _family(
                "reservation_state",
                "Reservations by what they are for, state and reason.",
                ("domain", "type", "state", "reason"),
                states,
            ),
            _family(
                "reservations_allocated_resources",
                "What reservations hold, in bytes or vCPUs.",
                (*READY_LABELS, "host", "resource"),
                amounts,
            ),
            *_host_families(usage),
            _exceeded([row for row in rows if row[2] is None]),
        ]


READY_LABELS = ("status_ready", "status_error")


def _family(
    suffix: str, words: str, labels: Sequence[str], rows: Iterable[Sequence[object]]
) -> GaugeMetricFamily:
    family = GaugeMetricFamily(metric_name(suffix), words, labels=list(labels))
    for row in rows:
        family.add_metric([str(label) for label in row[:-1]], float(str(row[-1])))
    return family


def _order(row: Sequence[object]) -> list[str]:
    return [str(label) for label in row[: len(HOST_LABELS) + 1]]


def _exceeded(rows: Iterable[Sequence[object]]) -> GaugeMetricFamily:
    """Return the hosts that promise more than they have, those that lack most first."""
    family = GaugeMetricFamily(
        metric_name("kvm_host_capacity_exceeded"),
        f"What a host promises beyond what it has, in bytes or vCPUs; at most {MOST_EXCEEDED}.",
        labels=["compute_host", "availability_zone", "resource"],
    )
    lacking = [
        (float(str(row[FIRST_AMOUNT])), [str(row[0]), str(row[1]), str(row[FIRST_AMOUNT - 1])])
        for row in rows
    ]
    for amount, labels in sorted(lacking, key=lambda one: (-one[0], one[1])):
        family.add_metric(labels, amount)
    return family


def _host_families(rows: Sequence[Sequence[object]]) -> list[Metric]:
    labels = [*HOST_LABELS, "resource"]
    totals = GaugeMetricFamily(
        metric_name("kvm_host_capacity_total"), "What may be promised on a host.", labels=labels
    )
    usage = GaugeMetricFamily(
        metric_name("kvm_host_capacity_usage"),
        "What fills a host, in bytes or vCPUs.",
        labels=[*labels, "type"],
    )
    for row in rows:
        known = [str(label) for label in row[: len(labels)]]
        total, utilized, reserved, failover, available = (
            float(str(one)) for one in row[FIRST_AMOUNT:]
        )
        totals.add_metric(known, total)
        for kind, amount in (
            ("utilized", utilized),
            ("reserved", reserved),
            ("failover", failover),
            ("available", available),
        ):
            usage.add_metric([*known, kind], amount)
    return [totals, usage]


def register() -> None:
    """Collect these gauges at every scrape of this process."""
    at_scrape(ReservationCollector())
