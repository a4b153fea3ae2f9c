"""Keeping what capacity was: hours of zones and groups, days made of them, days of hosts.

The numbers are those of the host rooms and of the capacity rows, which reports and the dashboard
show too. A row is written once; two runs at once, or one that was killed and began again, leave
what one would. Only the present hour and day are ever written, so an outage stays a gap.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import structlog
from django.conf import settings
from django.db import transaction

from capacity.figures.zone_rooms import zone_sums
from capacity.hooks import hooks
from capacity.models import CapacityComputation, CapacityHistory, GroupCapacity, HistorySpan
from journal.pruning import forget
from journal.statements import execute
from scheduling.resources import ZERO, ResourceVector

#: Capacity rows of a zone that nobody computed for so long speak for another hour.
STALE_AFTER: Final = timedelta(hours=1)
#: What rows of the history count, each as ``<name>_memory_bytes`` and ``<name>_vcpus``.
FIGURES: Final = (
    "total",
    "covered",
    "payg",
    "reserved_unused",
    "failover",
    "in_flight",
    "free",
    "exclusively_free",
)
COLUMNS: Final = tuple(f"{name}_{unit}" for name in FIGURES for unit in ("memory_bytes", "vcpus"))

DAYS: Final = f"""
INSERT INTO capacity_capacityhistory
       (span, at, zone, group_name, hours, is_made_up, {", ".join(COLUMNS)})
SELECT 'day', date_trunc('day', at, 'UTC'), zone, group_name, count(*), bool_or(is_made_up),
       {", ".join(f"div(sum({column}), count({column}))::bigint" for column in COLUMNS)}
  FROM capacity_capacityhistory
 WHERE span = 'hour' AND at < %(today)s
   AND at >= coalesce((SELECT max(at) + interval '1 day' FROM capacity_capacityhistory
                        WHERE span = 'day'), '-infinity')
 GROUP BY date_trunc('day', at, 'UTC'), zone, group_name
 ORDER BY 2, 3, 4
ON CONFLICT (zone, group_name, span, at) DO NOTHING
"""  # noqa: S608 - constants only
HOSTS: Final = """
INSERT INTO capacity_hosthistory
       (day, host_name, is_made_up, effective_memory_bytes, effective_vcpus,
        allocated_memory_bytes, allocated_vcpus, committed_memory_bytes, committed_vcpus,
        failover_memory_bytes, failover_vcpus, in_flight_memory_bytes, in_flight_vcpus)
SELECT %(today)s::date, host.name, false, room.effective_memory_bytes, room.effective_vcpus,
       room.allocated_memory_bytes, room.allocated_vcpus, room.committed_memory_bytes,
       room.committed_vcpus, room.failover_memory_bytes, room.failover_vcpus,
       room.in_flight_memory_bytes, room.in_flight_vcpus
  FROM capacity_hostcapacity AS room
  JOIN hosts_host AS host ON host.id = room.host_id
 WHERE NOT EXISTS (SELECT FROM capacity_hosthistory WHERE day = %(today)s::date)
 ORDER BY host.name
ON CONFLICT (host_name, day) DO NOTHING
"""
#: An hour goes only when its day is there.
FORGET_HOURS: Final = """
DELETE FROM capacity_capacityhistory WHERE id = ANY (ARRAY(
    SELECT id FROM capacity_capacityhistory
     WHERE span = 'hour' AND at < %(oldest)s AND at < (
           SELECT max(at) + interval '1 day' FROM capacity_capacityhistory WHERE span = 'day')
     ORDER BY at LIMIT %(rows)s FOR UPDATE SKIP LOCKED))
"""
FORGET_DAYS: Final = """
DELETE FROM capacity_capacityhistory WHERE id = ANY (ARRAY(
    SELECT id FROM capacity_capacityhistory WHERE span = 'day' AND at < %(oldest)s
     ORDER BY at LIMIT %(rows)s FOR UPDATE SKIP LOCKED))
"""
FORGET_HOSTS: Final = """
DELETE FROM capacity_hosthistory WHERE id = ANY (ARRAY(
    SELECT id FROM capacity_hosthistory WHERE day < %(oldest)s
     ORDER BY day LIMIT %(rows)s FOR UPDATE SKIP LOCKED))
"""

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryReport:
    """How many rows of each kind were written, and forgotten."""

    hours: int
    days: int
    hosts: int
    forgotten: int


def keep_history(*, now: datetime) -> HistoryReport:
    """Write the present hour and day where they are missing, and forget what is too old.

    Safe to run twice, beside itself and to be killed: each statement is whole by itself.
    """
    hour = now.astimezone(UTC).replace(minute=0, second=0, microsecond=0)
    today = hour.replace(hour=0)
    report = HistoryReport(
        hours=_write_hour(hour, now),
        days=execute(DAYS, {"today": today}),
        hosts=execute(HOSTS, {"today": today.date()}),
        forgotten=forget_history(now=now),
    )
    log.info("capacity_history_kept", counts=asdict(report))
    return report


def forget_history(*, now: datetime) -> int:
    """Forget rows past their retention (``HEADROOM_CAPACITY__..._HISTORY_DAYS``); return how many.

    Hours that no day was made of yet stay.
    """
    chosen = settings.HEADROOM.capacity
    return (
        forget(FORGET_HOURS, oldest=now - timedelta(days=chosen.hourly_history_days))
        + forget(FORGET_DAYS, oldest=now - timedelta(days=chosen.daily_history_days))
        + forget(FORGET_HOSTS, oldest=now - timedelta(days=chosen.host_history_days))
    )


def _write_hour(hour: datetime, now: datetime) -> int:
    hourly = CapacityHistory.objects.filter(span=HistorySpan.HOUR, at=hour)
    known = set(hourly.filter(group_name="").values_list("zone", flat=True))
    rows = []
    for sums in zone_sums().exclude(zone="").exclude(zone__in=known):
        covered = hooks.commitment_figures.covered(sums["zone"])
        of_zone = {"span": HistorySpan.HOUR, "at": hour, "zone": sums["zone"]}
        rows.append(CapacityHistory(**of_zone, **_zone_columns(sums, covered)))
        rows += [
            CapacityHistory(**of_zone, group_name=row.group_name, **_group_columns(row, covered))
            for row in _ready_groups(sums["zone"], now)
        ]
    if rows:
        with transaction.atomic(durable=True):
            CapacityHistory.objects.bulk_create(rows, ignore_conflicts=True)
    return len(rows)


def _ready_groups(zone: str, now: datetime) -> list[GroupCapacity]:
    """Return the capacity rows of a zone that speak for now: computed, and not long ago."""
    is_fresh = CapacityComputation.objects.filter(zone=zone, computed_at__gte=now - STALE_AFTER)
    if not is_fresh.exists():
        return []
    return list(GroupCapacity.objects.filter(zone=zone, is_ready=True).order_by("group_name"))


def _zone_columns(sums: Mapping[str, Any], covered: Mapping[str, ResourceVector]) -> dict[str, int]:
    of_vms = ResourceVector(memory_bytes=sums["vms"], vcpus=sums["vms_vcpus"])
    in_commitments = ResourceVector(
        memory_bytes=sum(one.memory_bytes for one in covered.values()),
        vcpus=sum(one.vcpus for one in covered.values()),
    )
    return {
        "total_memory_bytes": sums["installed"],
        "total_vcpus": sums["cores"],
        **_used(of_vms, in_commitments),
        "reserved_unused_memory_bytes": sums["committed"],
        "reserved_unused_vcpus": sums["committed_held_vcpus"],
        "failover_memory_bytes": sums["failover"],
        "failover_vcpus": sums["failover_held_vcpus"],
        "in_flight_memory_bytes": sums["in_flight"],
        "in_flight_vcpus": sums["in_flight_held_vcpus"],
        "free_memory_bytes": sums["free"],
        "free_vcpus": sums["free_vcpus"],
    }


def _group_columns(
    row: GroupCapacity, covered: Mapping[str, ResourceVector]
) -> dict[str, int | None]:
    running = ResourceVector(memory_bytes=row.running_memory_bytes, vcpus=row.running_vcpus)
    return {
        "total_memory_bytes": row.total_memory_bytes,
        "total_vcpus": row.total_vcpus or 0,
        **_used(running, covered.get(row.group_name, ZERO)),
        "reserved_unused_memory_bytes": row.reserved_unused_memory_bytes,
        "reserved_unused_vcpus": row.reserved_unused_vcpus,
        "free_memory_bytes": row.free_memory_bytes,
        "free_vcpus": row.free_vcpus,
        "exclusively_free_memory_bytes": row.exclusively_free_memory_bytes,
        "exclusively_free_vcpus": row.exclusively_free_vcpus,
    }


def _used(running: ResourceVector, covered: ResourceVector) -> dict[str, int]:
    """Split what VMs take; the count of covered ones may be a run older than that of all."""
    memory_bytes = min(covered.memory_bytes, running.memory_bytes)
    vcpus = min(covered.vcpus, running.vcpus)
    return {
        "covered_memory_bytes": memory_bytes,
        "covered_vcpus": vcpus,
        "payg_memory_bytes": running.memory_bytes - memory_bytes,
        "payg_vcpus": running.vcpus - vcpus,
    }
