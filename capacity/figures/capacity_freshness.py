"""Whether a zone's capacity rows still tell the truth (spec liquid, 13.2; design, "Concurrency").

A computation keeps the position it started from, and the log of changes (:mod:`core.changes`) tells
what came after it. A host that left the zone shows in the number of hosts, which are counted where
any host was written.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from django.conf import settings

from capacity.hooks import ZonePosition, hooks
from capacity.models import CapacityComputation
from core.changes import changed_rows, has_deletions, is_forgotten, xmin_of
from journal.clock import TOLERANCE, database_now
from journal.statements import fetch_row, fetch_rows, fetch_value


def _changed(table: str, alias: str) -> str:
    """Return the rows that were written since the position of ``done``."""
    return changed_rows(table, alias, since="done.snapshot")


FOLLOWED_DELETIONS = ("hosts_host", "hosts_instance", "capacity_reservation")

# Hosts of a zone are counted only where some host was written or deleted: one may have left it.
HOSTS_HAVE_CHANGED = f"""
{is_forgotten("done.snapshot")}
OR EXISTS (SELECT FROM {_changed("hosts_host", "host")} WHERE host.zone = done.zone)
OR CASE WHEN EXISTS (SELECT FROM journal_changes('hosts_host', done.snapshot))
        THEN (SELECT count(*) FROM hosts_host WHERE zone = done.zone) <> done.host_count
        ELSE false END
"""  # noqa: S608 - constants only

HAS_CHANGED = f"""
{HOSTS_HAVE_CHANGED}
OR EXISTS (SELECT FROM {_changed("capacity_hostcapacity", "room")} WHERE room.zone = done.zone)
OR EXISTS (SELECT FROM {_changed("capacity_reservation", "slot")}
            WHERE slot.zone = done.zone AND slot.kind = 'committed')
OR EXISTS (SELECT FROM {_changed("hosts_instance", "vm")}
             JOIN hosts_host AS host ON host.id = vm.host_id WHERE host.zone = done.zone)
OR {has_deletions(*FOLLOWED_DELETIONS, since="done.snapshot")}
"""  # noqa: S608 - constants only

STALE_ZONES = f"""
SELECT wanted.zone
  FROM unnest(%(zones)s::text[]) AS wanted(zone)
  LEFT JOIN capacity_capacitycomputation AS done ON done.zone = wanted.zone
 WHERE CASE WHEN done.zone IS NULL
            THEN EXISTS (SELECT FROM hosts_host WHERE hosts_host.zone = wanted.zone)
            ELSE %(has_written)s OR done.inputs <> %(inputs)s
                 OR done.computed_at < now() - %(max_age)s
                 OR done.computed_at > clock_timestamp() + %(tolerance)s OR {HAS_CHANGED}
       END
"""  # noqa: S608 - constants only

STALE_TOTALS = f"""
SELECT %(has_written)s OR done.inputs <> %(inputs)s OR {HOSTS_HAVE_CHANGED}
  FROM capacity_capacitycomputation AS done WHERE done.zone = %(zone)s
"""  # noqa: S608 - constants only

CHANGED_SINCE = f"""
SELECT {HAS_CHANGED}
  FROM (SELECT %(zone)s::text AS zone, %(snapshot)s::text AS snapshot,
               %(host_count)s::bigint AS host_count) AS done
"""  # noqa: S608 - constants only

POSITION = """
SELECT pg_current_snapshot()::text, pg_current_xact_id_if_assigned()::text::bigint,
       (SELECT count(*) FROM hosts_host WHERE zone = %s)
"""

HAS_WRITTEN = "SELECT pg_current_xact_id_if_assigned() IS NOT NULL"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadPosition:
    """From which state of the database a computation starts.

    Attributes:
        position: Zone and snapshot.
        host_count: Hosts in the zone.
    """

    position: ZonePosition
    host_count: int


def read_position(zone: str) -> ReadPosition:
    """Return the state of the database as of now.

    A transaction that has already written gets a position before its own writes, because these are
    not visible to others yet and later ones carry the same id.
    """
    snapshot, own_xid, host_count = fetch_row(POSITION, [zone])
    if own_xid is not None:
        xmin = min(xmin_of(snapshot), int(own_xid))
        snapshot = f"{xmin}:{xmin}:"
    position = ZonePosition(zone=zone, snapshot=snapshot)
    return ReadPosition(position=position, host_count=host_count)


def has_changed_since(read: ReadPosition) -> bool:
    """Return whether something that a zone's capacity depends on changed since a position."""
    parameters: dict[str, Any] = {  # Any: database parameters
        "zone": read.position.zone,
        "snapshot": read.position.snapshot,
        "host_count": read.host_count,
    }
    if fetch_value(CHANGED_SINCE, parameters):
        return True
    return bool(hooks.commitment_figures.zones_changed_since([read.position]))


def has_written() -> bool:
    """Return whether the running transaction has written something."""
    return bool(fetch_value(HAS_WRITTEN))


def max_age() -> timedelta:
    """Return after how long a zone is computed again: what time alone changes writes nothing."""
    return timedelta(seconds=settings.HEADROOM.capacity.reconcile_interval_seconds)


def has_stale_totals(zone: str, *, inputs: str) -> bool:
    """Return whether hosts or flavors of a zone changed since it was computed.

    Args:
        inputs: Fingerprint of flavor groups, settings and algorithm as of now.
    """
    parameters: dict[str, Any] = {  # Any: database parameters
        "zone": zone,
        "inputs": inputs,
        "has_written": has_written(),
    }
    return bool(fetch_value(STALE_TOTALS, parameters))


def zones_computed_within(zones: Collection[str], age: timedelta) -> set[str]:
    """Return those zones that were computed no longer ago than ``age``."""
    now = database_now()
    recent = CapacityComputation.objects.filter(
        zone__in=set(zones), computed_at__gt=now - age, computed_at__lte=now + TOLERANCE
    )
    return set(recent.values_list("zone", flat=True))


def stale_zones(zones: Collection[str], *, inputs: str) -> set[str]:
    """Return those zones whose capacity must be computed before it is told.

    Zones without hosts that were never computed are not stale: they have no capacity.

    Args:
        zones: Zones to look at.
        inputs: Fingerprint of flavor groups, settings and algorithm as of now.
    """
    if not zones:
        return set()
    parameters: dict[str, Any] = {  # Any: database parameters
        "zones": sorted(set(zones)),
        "inputs": inputs,
        "max_age": max_age(),
        "tolerance": TOLERANCE,
        "has_written": has_written(),
    }
    stale = {row[0] for row in fetch_rows(STALE_ZONES, parameters)}
    computed = CapacityComputation.objects.filter(zone__in=set(zones) - stale)
    return stale | hooks.commitment_figures.zones_changed_since(
        [ZonePosition(zone=row.zone, snapshot=row.snapshot) for row in computed]
    )
