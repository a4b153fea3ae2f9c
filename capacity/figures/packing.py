"""The most memory that flavors of a group can take of hosts (spec liquid, 13.7; commitments, 6.2).

What is published and what the slot planner can reach are both this: hosts are independent, so the
best of a zone is the sum of the best of its hosts. For one host it is found from the fewest vCPUs
that each amount of memory needs, a table that all hosts share.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from scheduling.capacity_count import slots_per_host
from scheduling.columns import Int64Column

MAX_CELLS = 1 << 20
"""Most amounts of memory in a table; for more, sizes that do not go together are left out."""
_UNREACHABLE = 1 << 30


class SlotSize(NamedTuple):
    """What one slot takes; memory in bytes, both positive."""

    memory_bytes: int
    vcpus: int


class PackedHosts(NamedTuple):
    """The best use of hosts, int64[N] each.

    Attributes:
        memory_bytes: Most memory that slots can take.
        vcpus: Fewest vCPUs of slots that take it.
    """

    memory_bytes: Int64Column
    vcpus: Int64Column


class Packing:
    """Ways to fill hosts with slots of some sizes, as often as they fit.

    More room never holds less. Exact, unless the sizes have so small a common divisor that the
    table would be larger than ``MAX_CELLS``; then it is exact for those of them that are whole
    multiples of the smallest.
    """

    def __init__(self, sizes: Sequence[SlotSize], most_memory_bytes: int) -> None:
        """Prepare for hosts of at most ``most_memory_bytes``; sizes in order of preference."""
        self._sizes = _manageable(sizes, most_memory_bytes)
        useful = _undominated(self._sizes)
        self._only = useful[0] if len(useful) == 1 else None
        self._grid = gcd(*(size.memory_bytes for size in useful)) if useful else 1
        self._fewest_vcpus = (
            _fewest_vcpus(useful, self._grid, max(0, most_memory_bytes) // self._grid)
            if len(useful) > 1
            else np.zeros(1, dtype=np.int32)
        )

    def most(self, memory_bytes: Int64Column, vcpus: Int64Column) -> PackedHosts:
        """Return the best use of hosts.

        Args:
            memory_bytes: int64[N], what they have; negative counts as 0.
            vcpus: int64[N], likewise.
        """
        if self._only is not None:
            slots = slots_per_host(memory_bytes, vcpus, *self._only)
            return PackedHosts(slots * self._only.memory_bytes, slots * self._only.vcpus)
        last = len(self._fewest_vcpus) - 1
        wanted = np.minimum(np.maximum(memory_bytes, 0) // self._grid, last)
        cells = np.zeros_like(wanted)
        limits, kind = np.unique(vcpus.clip(0, _UNREACHABLE - 1), return_inverse=True)
        order = np.argsort(kind, kind="stable")
        ends = np.cumsum(np.bincount(kind, minlength=len(limits)))
        for position, limit in enumerate(limits.tolist()):
            rows = order[ends[position - 1] if position else 0 : ends[position]]
            reachable = np.flatnonzero(self._fewest_vcpus <= limit)
            cells[rows] = reachable[np.searchsorted(reachable, wanted[rows], side="right") - 1]
        return PackedHosts(cells * self._grid, self._fewest_vcpus[cells].astype(np.int64))

    def slots(self, memory_bytes: int) -> tuple[SlotSize, ...]:
        """Return slots that take an amount with the fewest vCPUs, those preferred first.

        Args:
            memory_bytes: An amount that ``most`` returned.
        """
        taken: list[SlotSize] = []
        while memory_bytes > 0:
            size = next(one for one in self._sizes if self._begins_with(one, memory_bytes))
            taken.append(size)
            memory_bytes -= size.memory_bytes
        return tuple(sorted(taken, key=self._sizes.index))

    def _begins_with(self, size: SlotSize, memory_bytes: int) -> bool:
        rest_bytes = memory_bytes - size.memory_bytes
        if rest_bytes < 0:
            return False
        return self._vcpus_for(rest_bytes) + size.vcpus == self._vcpus_for(memory_bytes)

    def _vcpus_for(self, memory_bytes: int) -> int:
        cell, beyond = divmod(memory_bytes, self._grid)
        if beyond:
            return _UNREACHABLE
        if self._only is not None:
            return cell * self._only.vcpus
        return int(self._fewest_vcpus[cell])


def _manageable(sizes: Sequence[SlotSize], most_memory_bytes: int) -> tuple[SlotSize, ...]:
    distinct = tuple(dict.fromkeys(sizes))
    useful = _undominated(distinct)
    if len(useful) < 2 or _cells(useful, most_memory_bytes) <= MAX_CELLS:  # noqa: PLR2004 - one
        return distinct
    smallest = min(distinct)
    multiples = tuple(size for size in distinct if size.memory_bytes % smallest.memory_bytes == 0)
    if len(multiples) < len(distinct):
        return _manageable(multiples, most_memory_bytes)
    return (smallest,)


def _cells(sizes: Sequence[SlotSize], most_memory_bytes: int) -> int:
    return max(0, most_memory_bytes) // gcd(*(size.memory_bytes for size in sizes)) + 1


def _undominated(sizes: Sequence[SlotSize]) -> tuple[SlotSize, ...]:
    """Return the sizes in place of which no other one can be taken several times."""
    return tuple(
        size
        for size in sizes
        if not any(
            other != size
            and size.memory_bytes % other.memory_bytes == 0
            and size.vcpus >= size.memory_bytes // other.memory_bytes * other.vcpus
            for other in sizes
        )
    )


def _fewest_vcpus(sizes: Sequence[SlotSize], grid: int, last: int) -> npt.NDArray[np.int32]:
    """Return int32[last + 1], the fewest vCPUs of slots that take so many grid cells of memory."""
    fewest = np.full(last + 1, _UNREACHABLE, dtype=np.int32)
    fewest[0] = 0
    for size in sizes:
        step = size.memory_bytes // grid
        times = -(-(last + 1) // step)
        padded = np.full(times * step, _UNREACHABLE, dtype=np.int32)
        padded[: last + 1] = fewest
        by_rest = padded.reshape(times, step)
        cost = (np.arange(times, dtype=np.int64) * size.vcpus).clip(max=_UNREACHABLE)
        lowered = by_rest - cost[:, None]
        np.minimum.accumulate(lowered, axis=0, out=lowered)
        lowered += cost[:, None]
        fewest = np.minimum(lowered, _UNREACHABLE).astype(np.int32).reshape(-1)[: last + 1]
    return fewest
