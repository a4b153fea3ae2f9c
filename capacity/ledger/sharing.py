"""Which part of a VM is in which slot, where several slots of a host cover it (ADR 0017)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from scheduling.resources import ResourceVector

Parts = tuple[ResourceVector, ...]
"""One per slot, in the order of the slots."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InsideVM:
    """What of a VM is in a slot.

    Attributes:
        resources: Its part there.
        is_confirmed: Whether it was seen there; otherwise it is only expected.
        is_held: Whether an in-flight row blocks the room of an expected one.
    """

    resources: ResourceVector
    is_confirmed: bool = False
    is_held: bool = False


def share_vm(vm: ResourceVector, rooms: Sequence[ResourceVector]) -> Parts:
    """Return the parts of a VM in slots that cover it together.

    Memory decides which slots are needed: each takes what it has left, in the order given. What is
    beyond all of them is in the last one needed.

    Args:
        vm: What the VM takes.
        rooms: What the slots have left; at least one. Less than nothing counts as nothing.

    Returns:
        One part per slot, nothing in slots that are not needed; they add up to the VM.

    Source: spec scheduling, 12.2 (a VM may overfill its slot, CPU does not decide).
    """
    memory = _poured([vm.memory_bytes], [max(0, room.memory_bytes) for room in rooms])[0]
    needed = max((n for n, part in enumerate(memory, start=1) if part > 0), default=1)
    vcpus = _poured([vm.vcpus], [max(0, room.vcpus) for room in rooms[:needed]])[0]
    vcpus += [0] * (len(rooms) - needed)
    return _vectors(memory, vcpus)


def cut_slot(slot: ResourceVector, memory_bytes: Sequence[int]) -> Parts:
    """Return the pieces of a slot, with vCPUs in the ratio of their memory.

    Args:
        memory_bytes: Memory of the pieces, which adds up to that of the slot.

    Returns:
        One piece per memory; their vCPUs are floored, and the rest is in the later ones.
    """
    vcpus, until_bytes, given = [], 0, 0
    for part_bytes in memory_bytes:
        until_bytes += part_bytes
        due = slot.vcpus * until_bytes // slot.memory_bytes
        vcpus.append(due - given)
        given = due
    return _vectors(memory_bytes, vcpus)


def divide_vms(
    vms: Sequence[InsideVM], pieces: Sequence[ResourceVector], *, is_moving: bool = False
) -> tuple[Parts, ...]:
    """Return which parts of the VMs of a slot are in its pieces.

    The pieces block together what the slot blocked, and go on doing so when in-flight rows end.
    Seen VMs fill one piece after the other, then those expected fill what is left, first those that
    no in-flight row holds. What is beyond all pieces is in the last one.

    Args:
        vms: The VMs of the slot.
        pieces: Its pieces, which add up to it.
        is_moving: Whether the slot is on its way to another host: then seen VMs lessen nothing.

    Returns:
        One tuple of parts per VM; the parts of a VM add up to what of it was in the slot.

    Source: spec commitments, 10.1.
    """
    seen = [n for n, vm in enumerate(vms) if vm.is_confirmed]
    due = [n for n, vm in enumerate(vms) if not vm.is_confirmed]
    due.sort(key=lambda n: vms[n].is_held)
    by_resource = []
    for name in ("memory_bytes", "vcpus"):
        sizes = [getattr(piece, name) for piece in pieces]
        of_seen = _poured([getattr(vms[n].resources, name) for n in seen], sizes)
        left = sizes
        if not is_moving:
            taken = [sum(parts[p] for parts in of_seen) for p in range(len(sizes))]
            left = [max(0, size - used) for size, used in zip(sizes, taken, strict=True)]
        of_due = _poured([getattr(vms[n].resources, name) for n in due], left)
        by_resource.append(dict(zip([*seen, *due], [*of_seen, *of_due], strict=True)))
    memory, vcpus = by_resource
    return tuple(_vectors(memory[n], vcpus[n]) for n in range(len(vms)))


def _poured(amounts: Sequence[int], rooms: Sequence[int]) -> list[list[int]]:
    """Return how much of each amount goes where: one room is filled after the other.

    What is beyond all rooms goes into the last one.
    """
    left = list(rooms)
    poured = []
    for amount in amounts:
        rest, parts = amount, []
        for position, room in enumerate(left):
            is_last = position == len(left) - 1
            part = rest if is_last else min(rest, room)
            parts.append(part)
            left[position] = max(0, room - part)
            rest -= part
        poured.append(parts)
    return poured


def _vectors(memory: Sequence[int], vcpus: Sequence[int]) -> Parts:
    return tuple(
        ResourceVector(memory_bytes=memory_bytes, vcpus=cores)
        for memory_bytes, cores in zip(memory, vcpus, strict=True)
    )
