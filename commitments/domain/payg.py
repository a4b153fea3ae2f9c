"""Covering running VMs with new slots instead of holding fresh room (spec commitments, 7)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from scheduling.resources import ResourceVector


@dataclass(frozen=True, slots=True, kw_only=True)
class PaygVM:
    """A running VM that no slot holds yet.

    Attributes:
        host_id: Key of the host it runs on.
        host_name: Name of that host.
        flavor_name: Its flavor, which is in the commitment's group.
        flavor_memory_bytes: Memory of that flavor in the group.
        flavor_vcpus: vCPUs of that flavor in the group.
        resources: What the VM really takes.
    """

    vm_uuid: str
    host_id: int
    host_name: str
    flavor_name: str
    flavor_memory_bytes: int
    flavor_vcpus: int
    resources: ResourceVector


@dataclass(frozen=True, slots=True, kw_only=True)
class Adoption:
    """A VM that gets a slot.

    Attributes:
        memory_bytes: Memory of its slot: what is left to cover, if that is less than the VM.
    """

    vm: PaygVM
    memory_bytes: int


def in_adoption_order(vms: Sequence[PaygVM]) -> tuple[PaygVM, ...]:
    """Return VMs the largest first, ties by uuid (spec commitments, 7.1 step 5)."""
    return tuple(sorted(vms, key=lambda vm: (-vm.flavor_memory_bytes, vm.vm_uuid)))


def adopt_vms(candidates: Sequence[PaygVM], missing_bytes: int) -> tuple[Adoption, ...]:
    """Choose the VMs that cover an amount, each at most once.

    The largest that fits into what is left is taken first; when none fits, the smallest one, with a
    slot that is smaller than the VM.

    Args:
        candidates: VMs in any order.
        missing_bytes: Memory to cover; 0 or less needs none.

    Source: spec commitments, 7.2.
    """
    left = [vm for vm in in_adoption_order(candidates) if vm.flavor_memory_bytes > 0]
    adoptions: list[Adoption] = []
    while missing_bytes > 0 and left:
        fitting = (i for i, vm in enumerate(left) if vm.flavor_memory_bytes <= missing_bytes)
        vm = left.pop(next(fitting, len(left) - 1))
        memory_bytes = min(vm.flavor_memory_bytes, missing_bytes)
        adoptions.append(Adoption(vm=vm, memory_bytes=memory_bytes))
        missing_bytes -= memory_bytes
    return tuple(adoptions)
