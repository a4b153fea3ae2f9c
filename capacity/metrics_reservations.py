"""Gauges of reservations of every kind and of hosts, under the reference's names.

They are summed up from the rows at every scrape, so that what is gone leaves no series behind
(spec failover, 14.2; commitments, 20.1; hosts, "Host KPI").
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from prometheus_client.core import GaugeMetricFamily, Metric

from capacity.metrics_limits import tells_hosts
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
AMOUNTS_OF_HOST = 5
MOST_EXCEEDED = 100

# Ready failover slots and ready committed slots on each host, the latter less the VMs in them.
HOST_USAGE = """
WITH seen AS (
    SELECT reservation_id, sum(memory_bytes)::bigint AS memory_bytes, sum(vcpus)::bigint AS vcpus
      FROM capacity_reservationallocation GROUP BY reservation_id
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
), traited AS (
    SELECT host.*, host.traits || host.custom_traits AS every_trait FROM hosts_host AS host
)
SELECT host.name, host.zone,
       coalesce(nullif(host.building_block, ''), 'unknown'),
       CASE WHEN 'CUSTOM_HW_SAPPHIRE_RAPIDS' = ANY(host.every_trait)
            THEN 'sapphire-rapids' ELSE 'cascade-lake' END,
       CASE WHEN 'CUSTOM_HANA_EXCLUSIVE_HOST' = ANY(host.every_trait)
            THEN 'hana' ELSE 'general-purpose' END,
       'true',
       ('CUSTOM_DECOMMISSIONING' = ANY(host.every_trait))::text,
       ('CUSTOM_EXTERNAL_CUSTOMER_EXCLUSIVE' = ANY(host.every_trait))::text,
       (host.maintenance <> '')::text,
       part.resource, part.total, part.utilized, part.reserved, part.failover,
       greatest(0, part.total - part.utilized - part.reserved - part.failover)
  FROM traited AS host
  JOIN capacity_hostcapacity AS room ON room.host_id = host.id
  LEFT JOIN held ON held.host_id = host.id
 CROSS JOIN LATERAL (VALUES
       ('ram', coalesce(nullif(host.effective_memory_bytes, 0), host.total_memory_bytes),
        room.allocated_memory_bytes, coalesce(held.reserved_memory, 0),
        coalesce(held.failover_memory, 0)),
       ('cpu', coalesce(nullif(host.effective_vcpus, 0), host.total_vcpus),
        room.allocated_vcpus, coalesce(held.reserved_vcpus, 0), coalesce(held.failover_vcpus, 0))
       ) AS part(resource, total, utilized, reserved, failover)
 WHERE part.total > 0
 ORDER BY host.name, part.resource
"""


class ReservationCollector:
    """Reservations of every kind by readiness and host, and what fills each host."""

    def collect(self) -> Iterable[Metric]:
        """Return the gauges as of now.

        Raises:
            DatabaseError: The database does not answer, or not in time.
        """
        with scrape_cursor() as cursor:
            cursor.execute(COUNTS)
            counts = cursor.fetchall()
            cursor.execute(STATES)
            states = cursor.fetchall()
            by_host = tells_hosts(cursor)
            cursor.execute(AMOUNTS, {"tells_hosts": by_host})
            amounts = cursor.fetchall()
            cursor.execute(HOST_USAGE)
            usage = cursor.fetchall()
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
            *_host_families(usage if by_host else _summed(usage)),
            _exceeded(usage),
        ]


READY_LABELS = ("status_ready", "status_error")


def _family(
    suffix: str, words: str, labels: Sequence[str], rows: Iterable[Sequence[object]]
) -> GaugeMetricFamily:
    family = GaugeMetricFamily(metric_name(suffix), words, labels=list(labels))
    for row in rows:
        family.add_metric([str(label) for label in row[:-1]], float(str(row[-1])))
    return family


def _summed(rows: Sequence[Sequence[object]]) -> list[Sequence[object]]:
    """Return rows of hosts as one for all that differ in host and building block alone."""
    sums: dict[tuple[object, ...], list[int]] = {}
    for row in rows:
        labels = ("", row[1], "", *row[3:FIRST_AMOUNT])
        so_far = sums.setdefault(labels, [0] * AMOUNTS_OF_HOST)
        for place, amount in enumerate(row[FIRST_AMOUNT:]):
            so_far[place] += int(str(amount))
    return [(*labels, *amounts) for labels, amounts in sorted(sums.items(), key=str)]


def _exceeded(rows: Sequence[Sequence[object]]) -> GaugeMetricFamily:
    """Return the hosts that promise more than they have, those that lack most first."""
    family = GaugeMetricFamily(
        metric_name("kvm_host_capacity_exceeded"),
        f"What a host promises beyond what it has, in bytes or vCPUs; at most {MOST_EXCEEDED}.",
        labels=["compute_host", "availability_zone", "resource"],
    )
    lacking = []
    for row in rows:
        total, utilized, reserved, failover, _ = (int(str(one)) for one in row[FIRST_AMOUNT:])
        if utilized + reserved + failover > total:
            lacking.append((utilized + reserved + failover - total, row))
    lacking.sort(key=lambda one: (-one[0], str(one[1][0])))
    for amount, row in lacking[:MOST_EXCEEDED]:
        family.add_metric([str(row[0]), str(row[1]), str(row[FIRST_AMOUNT - 1])], amount)
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
