"""Capacity gauges, read from the rows when a scrape comes (spec liquid, 18)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from django.conf import settings
from django.db.backends.utils import CursorWrapper
from prometheus_client import Counter, Histogram
from prometheus_client.core import GaugeMetricFamily, Metric

from journal.clock import TOLERANCE
from journal.kept_sums import Rows, kept_sums, read_sums
from journal.metrics import at_scrape, metric_name, scrape_cursor
from scheduling.resources import GIB

HOST_TABLE_CHECKS = Counter(
    metric_name("scheduling_host_table_checks_total"),
    "Comparisons of the host table of a process with one built anew.",
    ["outcome"],
)
HOST_TABLE_DIFFERENCES = Counter(
    metric_name("scheduling_host_table_differences_total"),
    "Hosts and keys that the host table of a process had wrong.",
    ["column"],
)
HOST_TABLE_REFRESH_SECONDS = Histogram(
    metric_name("scheduling_host_table_refresh_seconds"),
    "Time to bring the host table of a process up to date.",
    buckets=(0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0),
)
PROBE_FAILURES = Counter(
    metric_name("committed_resource_capacity_probe_failures_total"),
    "Flavor groups whose capacity in a zone could not be computed: the old numbers stay.",
)
for _outcome in ("equal", "different"):
    HOST_TABLE_CHECKS.labels(outcome=_outcome)

READY_INTERVALS = 3

GROUP_LABELS = ("flavor_group", "az")
FLAVOR_LABELS = (*GROUP_LABELS, "flavor_name")
ZONE_LABELS = ("az",)

FLAVOR_GAUGES = (
    ("capacity_vm_slots_empty_datacenter", "VMs of the flavor that fit if all hosts were empty."),
    ("capacity_vm_slots_placeable", "VMs of the flavor that fit into what is left now."),
    ("capacity_hosts_empty_datacenter", "Hosts that fit the flavor if they were empty."),
    ("capacity_hosts_placeable", "Hosts that fit the flavor into what is left now."),
)
FLAVOR_FIGURES = """
SELECT capacity.group_name, capacity.zone, flavor.flavor_name,
       flavor.total_vm_slots, flavor.placeable_vms, flavor.total_hosts, flavor.placeable_hosts
  FROM capacity_flavorcapacity AS flavor
  JOIN capacity_groupcapacity AS capacity ON capacity.id = flavor.group_capacity_id
 ORDER BY 1, 2, 3
"""

SMALLEST_GAUGES = (
    ("running_instances", "VMs of the group on hosts of the zone."),
    ("free_capacity_gib", "Memory the group could use now; overlaps between groups."),
    ("exclusively_free_capacity_gib", "Memory free for the group alone after the split."),
    ("exclusively_free_slots", "Smallest flavors free for the group alone after the split."),
)
SMALLEST_FIGURES = f"""
SELECT group_name, zone, smallest_flavor_name, running_instances,
       free_memory_bytes / {GIB}::float8, exclusively_free_memory_bytes / {GIB}::float8,
       exclusively_free_slots
  FROM capacity_groupcapacity ORDER BY 1, 2
"""  # noqa: S608 - constants only

GROUP_GAUGES = (
    ("committed_gib", "Memory of confirmed and guaranteed commitments, in whole slots."),
    (
        "capacity_ready",
        "Whether the capacity is known, and from the last three intervals: 1 or 0.",
    ),
    ("reserved_unused_gib", "Memory that slots hold beyond their VMs."),
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

SLOT_GAUGES = (("committed_reservations", "Slots that hold room on a host."),)
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
    ("capacity_misplaced_vms", "VMs whose own zone is not that of their host."),
    ("capacity_ungrouped_vms", "VMs whose flavor is in no flavor group."),
    ("capacity_computed_timestamp_seconds", "When the capacity of the zone was last computed."),
)
ZONE_FIGURES = """
SELECT zone, misplaced_vms, ungrouped_vms, extract(epoch FROM computed_at)
  FROM capacity_capacitycomputation ORDER BY 1
"""

FAMILIES = (
    (FLAVOR_FIGURES, FLAVOR_LABELS, FLAVOR_GAUGES),
    (SMALLEST_FIGURES, FLAVOR_LABELS, SMALLEST_GAUGES),
    (GROUP_FIGURES, GROUP_LABELS, GROUP_GAUGES),
    (ZONE_FIGURES, ZONE_LABELS, ZONE_GAUGES),
)


class CapacityCollector:
    """Gauges of capacity per flavor, group and zone; rows that are gone leave no labels behind."""

    def collect(self) -> Iterable[Metric]:
        """Return the gauges as of now.

        Raises:
            DatabaseError: The database does not answer, or not in time.
        """
        with scrape_cursor() as cursor:
            families: list[Metric] = []
            parameters = {
                "ready_seconds": _ready_seconds(),
                "ahead_seconds": int(TOLERANCE.total_seconds()),
            }
            for statement, labels, gauges in FAMILIES:
                cursor.execute(statement, parameters)
                rows = cursor.fetchall()
                families.extend(_families(rows, labels, gauges))
                if statement is GROUP_FIGURES:
                    slots = _held_slots(cursor, [(group, zone) for group, zone, *_ in rows])
                    families.extend(_families(slots, labels, SLOT_GAUGES))
        return families


def _held_slots(cursor: CursorWrapper, groups: Sequence[tuple[str, str]]) -> Rows:
    """Return how many slots hold room, of every group and zone whose capacity is told."""
    (held,) = read_sums(cursor, HELD_SLOTS)
    counts = {(group, zone): count for group, zone, count in held}
    return [(*group, counts.get(group, 0)) for group in groups]


def _ready_seconds() -> int:
    """Return how long after its computation a row counts as ready (spec liquid, 20 row 14)."""
    interval_seconds: int = settings.HEADROOM.capacity.reconcile_interval_seconds
    return READY_INTERVALS * interval_seconds


def _families(
    rows: Sequence[Sequence[object]],
    labels: Sequence[str],
    gauges: Sequence[tuple[str, str]],
) -> list[Metric]:
    families: list[Metric] = []
    for position, (suffix, text) in enumerate(gauges, start=len(labels)):
        family = GaugeMetricFamily(
            metric_name(f"committed_resource_{suffix}"), text, labels=list(labels)
        )
        for row in rows:
            family.add_metric(
                [str(label) for label in row[: len(labels)]], float(str(row[position]))
            )
        families.append(family)
    return families


def register() -> None:
    """Collect these gauges at every scrape of this process."""
    at_scrape(CapacityCollector())
