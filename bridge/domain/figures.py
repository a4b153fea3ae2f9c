"""Capacity of groups and quota of projects as objects (spec liquid, 13.1 and 14.1)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from bridge.domain.kinds import Naming, ObjectKind
from bridge.domain.objects import Condition, Json, Rendered, present
from bridge.domain.quantities import memory_quantity, timestamp


@dataclass(frozen=True, slots=True, kw_only=True)
class FlavorRow:
    """How many VMs of a flavor fit in a zone."""

    name: str
    placeable_hosts: int
    placeable_vms: int
    total_hosts: int
    total_vm_slots: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityRow:
    """Capacity of a flavor group in a zone; pairs are bytes of memory and vCPUs.

    Attributes:
        total: Its vCPUs are None while they were not probed.
        flavors: In order of their names.
    """

    source_id: int
    plain_name: str
    group: str
    zone: str
    smallest_flavor: str
    total: tuple[int, int | None]
    free: tuple[int, int]
    exclusively_free: tuple[int, int]
    exclusively_free_slots: int
    running_instances: int
    running: tuple[int, int]
    committed_slots: int
    committed_memory_bytes: int
    computed_at: datetime | None
    condition: Condition
    flavors: tuple[FlavorRow, ...] = ()


def render_capacity(row: CapacityRow, naming: Naming) -> Rendered:
    """Return the capacity of a group (spec commitments, 2.4; liquid, 13.1)."""
    status = present(
        {
            "flavors": [
                {
                    "flavorName": flavor.name,
                    "placeableHosts": flavor.placeable_hosts,
                    "placeableVms": flavor.placeable_vms,
                    "totalCapacityHosts": flavor.total_hosts,
                    "totalCapacityVmSlots": flavor.total_vm_slots,
                }
                for flavor in row.flavors
            ]
            or None,
            "committedCapacity": row.committed_slots,
            "committedCapacityBytes": row.committed_memory_bytes,
            "smallestFlavorName": row.smallest_flavor,
            "totalCapacity": _memory_and_cores(row.total),
            "freeCapacity": _memory_and_cores(row.free),
            "exclusivelyFreeCapacity": _memory_and_cores(row.exclusively_free),
            "exclusivelyFreeSlots": row.exclusively_free_slots,
            "runningInstances": row.running_instances,
            "runningResources": _memory_and_cores(row.running),
            "lastReconcileAt": timestamp(row.computed_at),
        }
    )
    return Rendered(
        kind=ObjectKind.FLAVOR_GROUP_CAPACITY,
        source_id=row.source_id,
        name=naming.object_name(row.plain_name),
        zone=row.zone,
        spec={"flavorGroup": row.group, "availabilityZone": row.zone},
        status=status,
        condition=row.condition,
    )


def _memory_and_cores(pair: tuple[int, int | None]) -> Json:
    memory_bytes, cores = pair
    found = {"memory": memory_quantity(memory_bytes)}
    return found if cores is None else {**found, "cores": str(cores)}


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaRow:
    """A project's quota in a zone; maps of LIQUID names to amounts, memory in GiB."""

    source_id: int
    plain_name: str
    project_id: str
    project_name: str
    domain_id: str
    domain_name: str
    zone: str
    quota: Mapping[str, int]
    total_usage: Mapping[str, int]
    payg_usage: Mapping[str, int]
    total_usage_summary: str
    payg_usage_summary: str
    limes_usage_summary: str
    limes_quota_summary: str
    last_reconcile_at: datetime | None
    last_full_reconcile_at: datetime | None
    condition: Condition


def render_quota(row: QuotaRow, naming: Naming) -> Rendered:
    """Return a project's quota in a zone (spec commitments, 2.5; liquid, 14.1)."""
    return Rendered(
        kind=ObjectKind.PROJECT_QUOTA,
        source_id=row.source_id,
        name=naming.object_name(row.plain_name),
        zone=row.zone,
        spec=present(
            {
                "projectID": row.project_id,
                "projectName": row.project_name,
                "domainID": row.domain_id,
                "domainName": row.domain_name,
                "availabilityZone": row.zone,
                "quota": dict(row.quota),
            }
        ),
        status=present(
            {
                "totalUsage": dict(row.total_usage),
                "paygUsage": dict(row.payg_usage),
                "totalUsageSummary": row.total_usage_summary,
                "paygUsageSummary": row.payg_usage_summary,
                "limesUsageSummary": row.limes_usage_summary,
                "limesQuotaSummary": row.limes_quota_summary,
                "lastReconcileAt": timestamp(row.last_reconcile_at),
                "lastFullReconcileAt": timestamp(row.last_full_reconcile_at),
            }
        ),
        condition=row.condition,
    )
