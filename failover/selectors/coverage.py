"""How well VMs are covered, per zone and flavor (spec failover, 14.2, 17.4)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from django.conf import settings

from failover.domain.patterns import required_counts
from failover.selectors.zone import NEVER_COVERED, STOPPED, failover_requirements
from hosts.models import Instance
from journal.statements import fetch_rows

COVERAGE = """
WITH need AS (
    SELECT * FROM unnest(%(flavors)s::text[], %(counts)s::int[]) AS need(flavor_name, required)
), cover AS (
    SELECT member.vm_uuid, count(*) AS slots
      FROM capacity_reservationallocation AS member
      JOIN capacity_reservation AS held
        ON held.id = member.reservation_id AND held.kind = 'failover' AND held.is_ready
      LEFT JOIN failover_failoverreservation AS known ON known.reservation_id = held.id
     WHERE coalesce(known.state, 'active') = 'active'
     GROUP BY member.vm_uuid
)
SELECT host.zone, vm.flavor_name, need.required, count(*),
       count(*) FILTER (WHERE cover.slots >= need.required),
       count(*) FILTER (WHERE cover.slots < need.required),
       sum(vm.memory_bytes)::bigint
  FROM hosts_instance AS vm
  JOIN hosts_host AS host ON host.id = vm.host_id
  JOIN need ON need.flavor_name = vm.flavor_name
  LEFT JOIN cover ON cover.vm_uuid = vm.openstack_id
 WHERE vm.status <> ALL(%(not_owed)s) AND host.zone <> ''
   AND (%(cover_non_ha)s OR host.conditions->>'HaEnabled' IS DISTINCT FROM 'False')
 GROUP BY 1, 2, 3 ORDER BY 1, 2
"""

RESERVED = """
SELECT zone, sum(memory_bytes)::bigint, count(*) FROM capacity_reservation
 WHERE kind = 'failover' AND zone <> '' GROUP BY 1
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class FlavorCoverage:
    """Coverage of the VMs of a flavor in a zone.

    Attributes:
        zone: Availability zone.
        flavor_name: Flavor.
        required: Slots that each of its VMs must have.
        vms: VMs that slots are owed to now.
        covered_vms: Those that have them all.
        partly_covered_vms: Those that have some.
        memory_bytes: Memory of the VMs.
    """

    zone: str
    flavor_name: str
    required: int
    vms: int
    covered_vms: int
    partly_covered_vms: int
    memory_bytes: int

    @property
    def uncovered_vms(self) -> int:
        """VMs with fewer slots than they need."""
        return self.vms - self.covered_vms

    @property
    def bare_vms(self) -> int:
        """VMs without any slot."""
        return self.uncovered_vms - self.partly_covered_vms


@dataclass(frozen=True, slots=True, kw_only=True)
class ZoneCoverage:
    """Coverage of a zone.

    Attributes:
        zone: Availability zone.
        vms: VMs that slots are owed to now.
        covered_vms: Those that have them all.
        partly_covered_vms: Those that have some.
        memory_bytes: Memory of the VMs.
        reserved_memory_bytes: Memory of the failover slots.
        slots: Their number.
    """

    zone: str
    vms: int = 0
    covered_vms: int = 0
    partly_covered_vms: int = 0
    memory_bytes: int = 0
    reserved_memory_bytes: int = 0
    slots: int = 0

    @property
    def uncovered_vms(self) -> int:
        """VMs with fewer slots than they need."""
        return self.vms - self.covered_vms


def coverage_by_flavor() -> list[FlavorCoverage]:
    """Return the coverage of every zone and flavor whose VMs are owed slots, in this order.

    Stopped VMs are not owed any, nor those that are never covered (spec failover, 17.6).
    """
    names = Instance.objects.order_by().values_list("flavor_name", flat=True).distinct()
    required = {
        name: count
        for name, count in required_counts(failover_requirements(), names).items()
        if count > 0
    }
    return [
        FlavorCoverage(
            zone=row[0],
            flavor_name=row[1],
            required=row[2],
            vms=row[3],
            covered_vms=row[4],
            partly_covered_vms=row[5],
            memory_bytes=row[6],
        )
        for row in fetch_rows(
            COVERAGE,
            {
                "flavors": list(required),
                "counts": list(required.values()),
                "not_owed": sorted(NEVER_COVERED | STOPPED),
                "cover_non_ha": settings.HEADROOM.failover.cover_non_ha_hosts,
            },
        )
    ]


def coverage_by_zone(flavors: Iterable[FlavorCoverage]) -> list[ZoneCoverage]:
    """Return the sums of zones, with what their slots take; zones with slots alone as well."""
    reserved = {zone: (memory, slots) for zone, memory, slots in fetch_rows(RESERVED)}
    rows: dict[str, list[FlavorCoverage]] = {zone: [] for zone in reserved}
    for row in flavors:
        rows.setdefault(row.zone, []).append(row)
    return [
        ZoneCoverage(
            zone=zone,
            vms=sum(row.vms for row in rows[zone]),
            covered_vms=sum(row.covered_vms for row in rows[zone]),
            partly_covered_vms=sum(row.partly_covered_vms for row in rows[zone]),
            memory_bytes=sum(row.memory_bytes for row in rows[zone]),
            reserved_memory_bytes=reserved.get(zone, (0, 0))[0],
            slots=reserved.get(zone, (0, 0))[1],
        )
        for zone in sorted(rows)
    ]
