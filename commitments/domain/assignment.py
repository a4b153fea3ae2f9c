"""Which commitment covers which VM (spec commitments, 14.2-14.4)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TypeAlias

Place: TypeAlias = tuple[str, str]
"""Availability zone and flavor group."""

SizedVM: TypeAlias = tuple[str, int, int]
"""Server uuid, memory in bytes, vCPUs."""

_OLDEST = datetime.min.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class UsableCommitment:
    """A commitment that is in force, as it was accepted.

    Attributes:
        uuid: Commitment uuid.
        zone: Its availability zone.
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


NOTHING_COVERED = CoveredUsage()


def commitments_in_order(
    commitments: Iterable[UsableCommitment],
) -> tuple[UsableCommitment, ...]:
    """Return commitments as they are filled: no start first, oldest, largest, then uuid.

    Source: spec commitments, 14.2.
    """
    return tuple(
        sorted(commitments, key=lambda one: (one.start_time or _OLDEST, -one.amount, one.uuid))
    )


def assign_in_order(
    vms_by_place: Mapping[Place, Sequence[SizedVM]], commitments: Iterable[UsableCommitment]
) -> Mapping[str, CoveredUsage]:
    """Return what each commitment covers: first fit, memory and cores apart.

    A VM goes to the first commitment of its zone and group with enough left; one that fits none is
    pay-as-you-go, and later, smaller ones may still fit. A VM may be covered once for memory and
    once for cores. Costs the VMs, plus sizes times commitments of one place.

    Args:
        vms_by_place: Mapping (zone, flavor group) -> VMs, oldest first, then most memory,
            then uuid (14.3).
        commitments: The usable commitments of the project, in any order.

    Returns:
        Mapping commitment uuid -> covered usage, every commitment present.

    Source: spec commitments, 14.4, 14.7.
    """
    by_shelf: defaultdict[tuple[Place, bool], list[UsableCommitment]] = defaultdict(list)
    covered: dict[str, CoveredUsage] = {}
    for one in commitments_in_order(commitments):
        covered[one.uuid] = NOTHING_COVERED
        by_shelf[(one.zone, one.group), one.is_memory].append(one)
    for (place, is_memory), shelf in by_shelf.items():
        vms = vms_by_place.get(place, ()) if place[1] else ()
        if vms:
            covered.update(_first_fit(vms, shelf, is_memory=is_memory))
    return covered


def _first_fit(
    vms: Sequence[SizedVM], shelf: Sequence[UsableCommitment], *, is_memory: bool
) -> dict[str, CoveredUsage]:
    """Fill the commitments of one place and type.

    What is left of a commitment only shrinks, so the first one that fits a size is never before
    the first that fitted it last time: each size keeps its place in the row.
    """
    left = [one.amount for one in shelf]
    taken: list[list[SizedVM]] = [[] for _ in shelf]
    first_of_size: dict[int, int] = {}
    for vm in vms:
        size = vm[1] if is_memory else vm[2]
        position = first_of_size.get(size, 0)
        while position < len(left) and left[position] < size:
            position += 1
        first_of_size[size] = position
        if position < len(left):
            left[position] -= size
            taken[position].append(vm)
    return {
        one.uuid: CoveredUsage(
            vm_uuids=tuple(vm[0] for vm in vms_taken),
            memory_bytes=sum(vm[1] for vm in vms_taken),
            vcpus=sum(vm[2] for vm in vms_taken),
        )
        for one, vms_taken in zip(shelf, taken, strict=True)
    }
