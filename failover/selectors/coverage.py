"""How well VMs are covered, per zone and flavor (spec failover, 14.2, 17.4)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Final

from django.conf import settings

from core.sql import load_sql
from failover.domain.patterns import required_counts
from failover.drill_models import CoverageAccount
from failover.selectors.zone import NEVER_COVERED, STOPPED, failover_requirements
from hosts.models import Instance
from journal.statements import fetch_rows

COVERAGE = load_sql("failover", "coverage_of_vms")

RESERVED = """
SELECT zone, sum(memory_bytes)::bigint, count(*) FROM capacity_reservation
 WHERE kind = 'failover' AND zone <> '' GROUP BY 1
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class FlavorCoverage:
    """Coverage of the VMs of a flavor in a zone.

    Attributes:
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


#: What an account keeps of each flavor.
KEPT: Final = tuple(one.name for one in fields(FlavorCoverage) if one.name != "zone")


@dataclass(frozen=True, slots=True, kw_only=True)
class ZoneCoverage:
    """Coverage of a zone.

    Attributes:
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


def kept_coverage(account: CoverageAccount) -> list[FlavorCoverage]:
    """Return the coverage of a zone's flavors as it was counted for the zone's account."""
    return [
        FlavorCoverage(zone=account.zone, **{name: kept[name] for name in KEPT})
        for kept in account.flavors
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
