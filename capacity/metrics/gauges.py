"""What the rows tell of capacity when a scrape comes (spec liquid, 18; commitments, 11)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from django.conf import settings
from django.db.backends.utils import CursorWrapper

from capacity.ledger.allocated import (
    DRIFT,
    LISTED,
    chosen_source,
    drift_parameters,
    known_sources,
)
from journal.clock import TOLERANCE
from journal.kept_sums import Rows, kept_sums, read_sums
from journal.metrics import once_per_scrape
from journal.readings import Reading, Scraped, gauge
from scheduling.resources import GIB

READY_INTERVALS = 3

GROUP_LABELS = ("flavor_group", "az")
FLAVOR_LABELS = (*GROUP_LABELS, "flavor_name")
ZONE_LABELS = ("az",)

FLAVOR_GAUGES = (
    gauge(
        "committed_resource_capacity_vm_slots_empty_datacenter",
        "VMs of the flavor that fit if all hosts were empty.",
    ),
    gauge(
        "committed_resource_capacity_vm_slots_placeable",
        "VMs of the flavor that fit into what is left now.",
    ),
    gauge(
        "committed_resource_capacity_hosts_empty_datacenter",
        "Hosts that fit the flavor if they were empty.",
    ),
    gauge(
        "committed_resource_capacity_hosts_placeable",
        "Hosts that fit the flavor into what is left now.",
    ),
)
FLAVOR_FIGURES = """
SELECT capacity.group_name, capacity.zone, flavor.flavor_name,
       flavor.total_vm_slots, flavor.placeable_vms, flavor.total_hosts, flavor.placeable_hosts
  FROM capacity_flavorcapacity AS flavor
  JOIN capacity_groupcapacity AS capacity ON capacity.id = flavor.group_capacity_id
 ORDER BY 1, 2, 3
"""

SMALLEST_GAUGES = (
    gauge("committed_resource_running_instances", "VMs of the group on hosts of the zone."),
    gauge(
        "committed_resource_free_capacity_gib",
        "Memory the group could use now; overlaps between groups.",
    ),
    gauge(
        "committed_resource_exclusively_free_capacity_gib",
        "Memory free for the group alone after the split.",
    ),
    gauge(
        "committed_resource_exclusively_free_slots",
        "Smallest flavors free for the group alone after the split.",
    ),
)
SMALLEST_FIGURES = f"""
SELECT group_name, zone, smallest_flavor_name, running_instances,
       free_memory_bytes / {GIB}::float8, exclusively_free_memory_bytes / {GIB}::float8,
       exclusively_free_slots
  FROM capacity_groupcapacity ORDER BY 1, 2
"""  # noqa: S608 - constants only

GROUP_GAUGES = (
    gauge(
        "committed_resource_committed_gib",
        "Memory of confirmed and guaranteed commitments, in whole slots.",
    ),
    gauge(
        "committed_resource_capacity_ready",
        "Whether the capacity is known, and from the last three intervals: 1 or 0.",
    ),
    gauge("committed_resource_reserved_unused_gib", "Memory that slots hold beyond their VMs."),
)
GROUP_FIGURES = f"""
SELECT capacity.group_name, capacity.zone, capacity.committed_memory_bytes / {GIB}::float8,
       (capacity.is_ready AND coalesce(done.computed_at, capacity.computed_at, '-infinity')
                              BETWEEN now() - make_interval(secs => %(ready_seconds)s)
                                  AND now() + make_interval(secs => %(ahead_seconds)s))::int,
       capacity.reserved_unused_memory_bytes / {GIB}::float8
  FROM capacity_groupcapacity AS capacity
  LEFT JOIN capacity_capacitycomputation AS done ON done.zone = capacity.zone
 ORDER BY 1, 2
"""  # noqa: S608 - constants only

SLOT_GAUGES = (
    gauge("committed_resource_committed_reservations", "Slots that hold room on a host."),
)
HELD_SLOTS = kept_sums(
    "capacity_held_slots",
    """
SELECT flavor_group_name, zone, count(*)
  FROM capacity_reservation
 WHERE kind = 'committed' AND (target_host_id IS NOT NULL OR confirmed_host_id IS NOT NULL)
 GROUP BY 1, 2
""",
)

ZONE_GAUGES = (
    gauge(
        "committed_resource_capacity_misplaced_vms", "VMs whose own zone is not that of their host."
    ),
    gauge("committed_resource_capacity_ungrouped_vms", "VMs whose flavor is in no flavor group."),
    gauge(
        "committed_resource_capacity_computed_timestamp_seconds",
        "When the capacity of the zone was last computed.",
    ),
)
ZONE_FIGURES = """
SELECT zone, misplaced_vms, ungrouped_vms, extract(epoch FROM computed_at)
  FROM capacity_capacitycomputation ORDER BY 1
"""


def _readiness() -> Mapping[str, Any]:
    """Return how long after its computation a row counts as ready (spec liquid, 20 row 14)."""
    return {
        "ready_seconds": READY_INTERVALS * settings.HEADROOM.capacity.reconcile_interval_seconds,
        "ahead_seconds": int(TOLERANCE.total_seconds()),
    }


def _group_figures(cursor: CursorWrapper) -> Rows:
    cursor.execute(GROUP_FIGURES, _readiness())
    rows: Rows = cursor.fetchall()
    return rows


def _held_slots(cursor: CursorWrapper) -> Rows:
    """Return how many slots hold room, of every group and zone whose capacity is told."""
    (held,) = read_sums(cursor, HELD_SLOTS)
    counts = {(group, zone): count for group, zone, count in held}
    groups = once_per_scrape(_group_figures, cursor)
    return [(group, zone, counts.get((group, zone), 0)) for group, zone, *_ in groups]


CAPACITY: Final = Scraped(
    "capacity",
    Reading(FLAVOR_FIGURES, FLAVOR_LABELS, FLAVOR_GAUGES),
    Reading(SMALLEST_FIGURES, FLAVOR_LABELS, SMALLEST_GAUGES),
    Reading(lambda cursor: once_per_scrape(_group_figures, cursor), GROUP_LABELS, GROUP_GAUGES),
    Reading(_held_slots, GROUP_LABELS, SLOT_GAUGES),
    Reading(ZONE_FIGURES, ZONE_LABELS, ZONE_GAUGES),
)

EXCESS = kept_sums(
    "host_excess",
    """
SELECT host.name, room.zone, part.resource, part.excess
  FROM capacity_hostcapacity AS room
  JOIN hosts_host AS host ON host.id = room.host_id
 CROSS JOIN LATERAL (VALUES
       ('memory', room.allocated_memory_bytes + room.committed_memory_bytes
                  + room.failover_memory_bytes + room.in_flight_memory_bytes
                  - room.effective_memory_bytes),
       ('cpu', room.allocated_vcpus + room.committed_vcpus + room.failover_vcpus
               + room.in_flight_vcpus - room.effective_vcpus)
       ) AS part(resource, excess)
 WHERE room.oversubscribed_since IS NOT NULL AND part.excess > 0
 UNION ALL
SELECT host.name, room.zone, other.resource,
       other.allocated + other.reserved - other.effective_capacity
  FROM capacity_hostcapacity AS room
  JOIN hosts_host AS host ON host.id = room.host_id
  JOIN hosts_hostresource AS other ON other.host_id = room.host_id
 WHERE room.oversubscribed_since IS NOT NULL AND other.source <> 'unknown' AND NOT other.is_stale
   AND other.allocated + other.reserved > other.effective_capacity
 ORDER BY 1, 3
""",
)

#: Hosts that the guard has seen over-subscribed; gone once it is resolved.
OVERSUBSCRIPTION: Final = Scraped(
    "oversubscription",
    Reading(
        EXCESS,
        ("host", "az", "resource"),
        (
            gauge(
                "committed_resource_host_oversubscribed",
                "What a host lacks for its VMs and reservations: bytes, vCPUs, bytes/s or GPUs.",
            ),
        ),
    ),
)

#: Of one source: in how many hosts of a zone it differs, and by how much memory.
OF_SOURCE: Final = """
SELECT '{source}', drift.zone, count(*), sum(abs(drift.memory_bytes))
  FROM ({drift}) AS drift GROUP BY drift.zone
"""
#: That others have less than the VM list is no drift.
NOTHING: Final = "SELECT '', '', 0, 0 WHERE false"


def _drifts() -> str:
    """Return the statement of every source but the one in force."""
    if chosen_source() == LISTED:
        return NOTHING
    parts = (
        OF_SOURCE.format(source=name, drift=DRIFT.format(allocated=statement))
        for name, statement in sorted(known_sources().items())
        if name != chosen_source()
    )
    return " UNION ALL ".join(parts) + " ORDER BY 1, 2"


SUMS: Final = kept_sums("allocation_drift", _drifts, lambda _: drift_parameters())

#: Nothing is told while the VM list is in force: that others have less is no drift there.
ALLOCATION_DRIFT: Final = Scraped(
    "allocation_drift",
    Reading(
        lambda cursor: [] if chosen_source() == LISTED else read_sums(cursor, SUMS)[0],
        ("source", "az"),
        (
            gauge(
                "host_allocation_drift_hosts",
                "Hosts of which a source says otherwise than the one in force.",
            ),
            gauge(
                "host_allocation_drift_bytes",
                "Memory by which a source differs from the one in force, added up over hosts.",
            ),
        ),
    ),
)
