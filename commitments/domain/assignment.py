"""Which commitment covers which VM (spec commitments, 14.2-14.4)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

_OLDEST = datetime.min.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class AssignableVM:
    """A VM that a commitment may cover.

    Attributes:
        uuid: Server uuid.
        zone: Its availability zone.
        group: Its flavor group; empty when its flavor is in none.
        memory_bytes: Its memory.
        vcpus: Its vCPUs.
        created_at: When it was created; None counts as oldest.
    """

    uuid: str
    zone: str
    group: str
    memory_bytes: int
    vcpus: int
    created_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class UsableCommitment:
    """A commitment that is in force, as it was accepted.

    Attributes:
        uuid: Commitment uuid.
        zone: Its availability zone.
        group: Its flavor group.
        is_memory: Whether it promises memory; otherwise cores.
        amount: Bytes of memory, or vCPUs.
        start_time: When it began; None sorts before every time.
    """

    uuid: str
    zone: str
    group: str
    is_memory: bool
    amount: int
    start_time: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CoveredUsage:
    """What a commitment covers.

    Attributes:
        vm_uuids: VMs in the order they were assigned.
        memory_bytes: Their memory.
        vcpus: Their vCPUs.
    """

    vm_uuids: tuple[str, ...] = ()
    memory_bytes: int = 0
    vcpus: int = 0


def vms_in_order(vms: Iterable[AssignableVM]) -> tuple[AssignableVM, ...]:
    """Return VMs as they are served: oldest first, then most memory, then uuid.

    Source: spec commitments, 14.3.
    """
    return tuple(sorted(vms, key=lambda vm: (vm.created_at or _OLDEST, -vm.memory_bytes, vm.uuid)))


def commitments_in_order(
    commitments: Iterable[UsableCommitment],
) -> tuple[UsableCommitment, ...]:
    """Return commitments as they are filled: no start first, oldest, largest, then uuid.

    Source: spec commitments, 14.2.
    """
    return tuple(
        sorted(commitments, key=lambda one: (one.start_time or _OLDEST, -one.amount, one.uuid))
    )


def assign_vms(
    vms: Iterable[AssignableVM], commitments: Iterable[UsableCommitment]
) -> Mapping[str, CoveredUsage]:
    """Return what each commitment covers: first fit, memory and cores apart.

    A VM goes to the first commitment of its zone and group with enough left; one that fits none is
    pay-as-you-go, and later, smaller ones may still fit. A VM may be covered once for memory and
    once for cores.

    Args:
        vms: The VMs of one project, in any order.
        commitments: The usable commitments of the project, in any order.

    Returns:
        Mapping commitment uuid -> covered usage, every commitment present.

    Source: spec commitments, 14.4, 14.7.
    """
    ordered_vms = vms_in_order(vms)
    ordered = commitments_in_order(commitments)
    covered: dict[str, CoveredUsage] = {}
    for is_memory in (True, False):
        of_type = [one for one in ordered if one.is_memory is is_memory]
        covered.update(_first_fit(ordered_vms, of_type))
    return {one.uuid: covered[one.uuid] for one in ordered}


def _first_fit(
    vms: Iterable[AssignableVM], commitments: Iterable[UsableCommitment]
) -> dict[str, CoveredUsage]:
    remaining: dict[str, int] = {}
    taken: dict[str, list[AssignableVM]] = {}
    by_place: defaultdict[tuple[str, str], list[UsableCommitment]] = defaultdict(list)
    for one in commitments:
        remaining[one.uuid] = one.amount
        taken[one.uuid] = []
        by_place[one.zone, one.group].append(one)
    for vm in vms:
        for one in by_place.get((vm.zone, vm.group), ()):
            asked = vm.memory_bytes if one.is_memory else vm.vcpus
            if vm.group and remaining[one.uuid] >= asked:
                remaining[one.uuid] -= asked
                taken[one.uuid].append(vm)
                break
    return {
        uuid: CoveredUsage(
            vm_uuids=tuple(vm.uuid for vm in vms_taken),
            memory_bytes=sum(vm.memory_bytes for vm in vms_taken),
            vcpus=sum(vm.vcpus for vm in vms_taken),
        )
        for uuid, vms_taken in taken.items()
    }
