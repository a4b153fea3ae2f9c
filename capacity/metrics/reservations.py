"""Gauges of reservations of every kind and of hosts, under the reference's names.

They are summed up from the rows, twice a minute, so that what is gone leaves no series behind
(spec failover, 14.2; commitments, 20.1; hosts, "Host KPI").
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from django.db.backends.utils import CursorWrapper

from capacity.metrics.limits import tells_hosts
from journal.kept_sums import Parameters, Rows, kept_sums, read_sums
from journal.metrics import once_per_scrape
from journal.readings import Reading, Scraped, gauge

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
    "os_version",
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
           host.traits || host.custom_traits AS traits, host.maintenance, host.os_version,
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
       CASE WHEN %(tells_hosts)s THEN os_version ELSE '' END,
       resource, sum(total), sum(utilized), sum(reserved), sum(failover),
       sum(greatest(0, total - utilized - reserved - failover))
  FROM used GROUP BY 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11
 UNION ALL
SELECT name, zone, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, resource, lacking, 0, 0, 0, 0
  FROM exceeded
"""


def _how_finely(cursor: CursorWrapper) -> Parameters:
    return {"tells_hosts": tells_hosts(cursor)}


def _how_many_exceeded(cursor: CursorWrapper) -> Parameters:
    return {**_how_finely(cursor), "most_exceeded": MOST_EXCEEDED}


COUNTED = kept_sums("reservations", COUNTS)
BY_STATE = kept_sums("reservation_states", STATES)
BY_HOST = kept_sums("reservation_amounts", AMOUNTS, _how_finely)
USAGE = kept_sums("host_usage", HOST_USAGE, _how_many_exceeded)


def _usage(cursor: CursorWrapper) -> Rows:
    return read_sums(cursor, USAGE)[0]


def _hosts(cursor: CursorWrapper) -> list[Sequence[Any]]:  # Any: what a statement tells
    rows = [row for row in once_per_scrape(_usage, cursor) if row[2] is not None]
    return sorted(rows, key=lambda row: [str(label) for label in row[:FIRST_AMOUNT]])


def _totals(cursor: CursorWrapper) -> Rows:
    return [row[: FIRST_AMOUNT + 1] for row in once_per_scrape(_hosts, cursor)]


def _used(cursor: CursorWrapper) -> Rows:
    return [
        (*row[:FIRST_AMOUNT], kind, amount)
        for row in once_per_scrape(_hosts, cursor)
        for kind, amount in zip(USED_AS, row[FIRST_AMOUNT + 1 :], strict=True)
    ]


def _exceeded(cursor: CursorWrapper) -> Rows:
    """Return the hosts that promise more than they have, those that lack most first."""
    lacking = [
        (row[0], row[1], row[FIRST_AMOUNT - 1], row[FIRST_AMOUNT])
        for row in once_per_scrape(_usage, cursor)
        if row[2] is None
    ]
    return sorted(lacking, key=lambda row: (-row[3], *row[:3]))


READY_LABELS = ("status_ready", "status_error")
USED_AS = ("utilized", "reserved", "failover", "available")
RESERVATIONS: Final = Scraped(
    "reservations",
    Reading(COUNTED, READY_LABELS, (gauge("reservations", "Reservations of every kind."),)),
    Reading(
        BY_STATE,
        ("domain", "type", "state", "reason"),
        (gauge("reservation_state", "Reservations by what they are for, state and reason."),),
    ),
    Reading(
        BY_HOST,
        (*READY_LABELS, "host", "resource"),
        (gauge("reservations_allocated_resources", "What reservations hold, in bytes or vCPUs."),),
    ),
    Reading(
        _totals,
        (*HOST_LABELS, "resource"),
        (gauge("kvm_host_capacity_total", "What may be promised on a host."),),
    ),
    Reading(
        _used,
        (*HOST_LABELS, "resource", "type"),
        (gauge("kvm_host_capacity_usage", "What fills a host, in bytes or vCPUs."),),
    ),
    Reading(
        _exceeded,
        ("compute_host", "availability_zone", "resource"),
        (
            gauge(
                "kvm_host_capacity_exceeded",
                "What a host promises beyond what it has, in bytes or vCPUs;"
                f" at most {MOST_EXCEEDED}.",
            ),
        ),
    ),
)
