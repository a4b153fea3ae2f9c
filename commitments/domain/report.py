"""Capacity and usage of one flavor group in declared units (spec liquid, 8.1, 9.1, 9.2)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from capacity.groups.flavor_groups import FlavorGroupDef
from capacity.groups.group_settings import GroupSettings
from capacity.groups.units import bytes_to_declared_units, gib_to_declared_units, usage_units
from commitments.domain.names import (
    resource_name_cores,
    resource_name_instances,
    resource_name_ram,
)

MIB_PER_GIB = 1024
UNLIMITED = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class ZoneCapacity:
    """What a group has in one zone.

    Attributes:
        running_instances: VMs running.
        running_slots: The same in smallest flavors; None when not computed.
        running_memory_bytes: Memory of those VMs.
        running_vcpus: vCPUs of those VMs.
        free_slots: Room for VMs of the smallest flavor, not shared with other groups.
        free_memory_bytes: Memory of that room.
        free_vcpus: vCPUs of that room.
        reserved_slots: Smallest flavors held by commitments that no VM uses yet.
        reserved_memory_bytes: Memory so held.
        reserved_vcpus: vCPUs so held.
    """

    running_instances: int = 0
    running_slots: int | None = None
    running_memory_bytes: int = 0
    running_vcpus: int = 0
    free_slots: int = 0
    free_memory_bytes: int = 0
    free_vcpus: int = 0
    reserved_slots: int = 0
    reserved_memory_bytes: int = 0
    reserved_vcpus: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityEntry:
    """Capacity and usage of a resource in a zone, in declared units.

    Attributes:
        capacity: What there is, used or not.
        usage: What is used.
    """

    capacity: int
    usage: int


def counts_in_slots(group: FlavorGroupDef, unit_mib: int) -> bool:
    """Return whether the memory of a group is counted in smallest flavors.

    It is for groups of fixed ratio whose declared unit is the smallest flavor, rounded to GiB. With
    any other unit the slots would not be what the unit string says, so bytes are divided instead.

    Args:
        group: The flavor group.
        unit_mib: Size of its declared unit in MiB.

    Source: spec liquid, 6.4, 9.2.
    """
    if not group.has_fixed_ratio:
        return False
    rounded_gib = (2 * group.smallest.memory_mib + MIB_PER_GIB) // (2 * MIB_PER_GIB)
    return max(rounded_gib, 1) * MIB_PER_GIB == unit_mib


def vm_ram_units(
    memory_bytes: int, *, group: FlavorGroupDef, unit_mib: int, tolerance_mib: int
) -> int:
    """Return the declared units of memory that one VM uses (floor).

    Args:
        memory_bytes: Memory of the VM.
        unit_mib: Size of the group's declared unit in MiB.
        tolerance_mib: MiB a VM may lack and still count as whole.

    Source: spec liquid, 9.2.
    """
    if memory_bytes <= 0:
        return 0
    return usage_units(
        memory_bytes,
        group=group if counts_in_slots(group, unit_mib) else None,
        unit_mib=unit_mib,
        tolerance_mib=tolerance_mib,
    )


def capacity_entries(
    zone: ZoneCapacity, group: FlavorGroupDef, settings: GroupSettings
) -> Mapping[str, CapacityEntry]:
    """Return what a group has in a zone, per resource name, whether reported or not.

    Source: spec liquid, 8.1: sum first, divide once.
    """
    unit_mib = settings.ram_unit_mib
    if counts_in_slots(group, unit_mib):
        running = zone.running_instances if zone.running_slots is None else zone.running_slots
        ram = CapacityEntry(capacity=running + zone.free_slots + zone.reserved_slots, usage=running)
    else:
        memory_bytes = (
            zone.running_memory_bytes + zone.free_memory_bytes + zone.reserved_memory_bytes
        )
        ram = CapacityEntry(
            capacity=bytes_to_declared_units(memory_bytes, unit_mib),
            usage=bytes_to_declared_units(zone.running_memory_bytes, unit_mib),
        )
    return {
        resource_name_ram(group.name): ram,
        resource_name_cores(group.name): CapacityEntry(
            capacity=zone.running_vcpus + zone.free_vcpus + zone.reserved_vcpus,
            usage=zone.running_vcpus,
        ),
        resource_name_instances(group.name): CapacityEntry(
            capacity=zone.running_instances + zone.free_slots + zone.reserved_slots,
            usage=zone.running_instances,
        ),
    }


def quota_units(stored: int | None, *, ram_unit_mib: int | None) -> int:
    """Return a stored quota in declared units; -1 when nothing is known.

    Args:
        stored: GiB for memory, counts for the rest; None when there is no entry.
        ram_unit_mib: Size of the declared unit for memory; None for counted resources.

    Source: spec liquid, 6.4, 9.1: negatives pass through.
    """
    if stored is None:
        return UNLIMITED
    return stored if ram_unit_mib is None else gib_to_declared_units(stored, ram_unit_mib)
