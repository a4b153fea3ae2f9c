"""How large a failover reservation is (spec failover, 12.2)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hosts.domain.vm import VM

MIB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupFlavor:
    """The largest flavor of a flavor group.

    Attributes:
        group: The group.
        flavor_name: Its largest flavor.
        memory_bytes: Memory of that flavor.
        vcpus: vCPUs of that flavor.
    """

    group: str
    flavor_name: str
    memory_bytes: int
    vcpus: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotSize:
    """Size and label of a reservation.

    Attributes:
        flavor_name: Flavor it is asked for as.
        resource_group: Flavor group if it is sized by one, else the flavor.
        memory_bytes: Whole MiB.
        vcpus: vCPUs.
    """

    flavor_name: str
    resource_group: str
    memory_bytes: int
    vcpus: int


def resolve_size(vm: VM, largest_of: Mapping[str, GroupFlavor], *, by_group: bool) -> SlotSize:
    """Return the size of a reservation for a VM.

    Args:
        vm: The VM.
        largest_of: Flavor name -> largest flavor of its group.
        by_group: Whether to take that one.

    Source: spec failover, 12.2.
    """
    largest = largest_of.get(vm.flavor_name) if by_group else None
    if largest is not None:
        return SlotSize(
            flavor_name=largest.flavor_name,
            resource_group=largest.group,
            memory_bytes=largest.memory_bytes // MIB * MIB,
            vcpus=largest.vcpus,
        )
    return SlotSize(
        flavor_name=vm.flavor_name,
        resource_group=vm.flavor_name,
        memory_bytes=(vm.memory_bytes or 0) // MIB * MIB,
        vcpus=vm.vcpus or 0,
    )
