"""How little memory coverage could take: lower bounds to hold the loop against (failover, 17.4)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Int64Column = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class LowerBounds:
    """Memory in bytes that no plan with full coverage can stay below.

    Attributes:
        fullest_host: VMs of one host can never share a slot, so the fullest one needs a slot for
            each of its VMs (LB1).
        ranked: The i-th largest slot is at least as large as the i-th largest VM of every host
            (LB2); never below ``fullest_host``.
        shared: The fewer hosts, the fewer VMs may share a slot (LB3).
    """

    fullest_host: int = 0
    ranked: int = 0
    shared: int = 0

    @property
    def best(self) -> int:
        """The largest of the bounds."""
        return max(self.fullest_host, self.ranked, self.shared)


def lower_bounds(
    host: Int64Column, memory_bytes: Int64Column, required: Int64Column, *, host_count: int
) -> LowerBounds:
    """Return the lower bounds of the memory that failover slots need.

    With one required count ``n`` for all VMs they are the specification's formulas; with several,
    every VM counts with its own: as ``n`` demands of its size for the first two, and as
    ``n^2 / (H - 1)`` times its size for the third.

    Args:
        host: int64[V], host of each VM, any number that tells hosts apart.
        memory_bytes: int64[V], size of each VM.
        required: int64[V], slots that each VM must have.
        host_count: Hosts of the zone, or failure domains where these have to differ.

    Source: spec failover, 17.4.
    """
    wanted = required > 0
    host, memory, count = host[wanted], memory_bytes[wanted], required[wanted]
    if not len(host):
        return LowerBounds()
    per_host = np.zeros(int(np.unique(host).size), dtype=np.int64)
    _, codes = np.unique(host, return_inverse=True)
    np.add.at(per_host, codes, memory * count)
    squared = sum(int(size) * int(number) ** 2 for size, number in zip(memory, count, strict=True))
    return LowerBounds(
        fullest_host=int(per_host.max()),
        ranked=_ranked(codes, memory, count),
        # a bound of whole bytes may be rounded up
        shared=-(-squared // max(1, host_count - 1)),
    )


def _ranked(codes: Int64Column, memory: Int64Column, count: Int64Column) -> int:
    """Return the sum over ranks of the largest demand of that rank on any host."""
    host = np.repeat(codes, count)
    size = np.repeat(memory, count)
    order = np.lexsort((-size, host))
    host, size = host[order], size[order]
    starts = np.flatnonzero(np.r_[True, host[1:] != host[:-1]])
    lengths = np.diff(np.r_[starts, len(host)])
    ranks = np.arange(len(host)) - np.repeat(starts, lengths)
    largest = np.zeros(int(lengths.max()), dtype=np.int64)
    np.maximum.at(largest, ranks, size)
    return int(largest.sum())


@dataclass(frozen=True, slots=True, kw_only=True)
class CoverageCost:
    """What coverage takes in a zone, or among VMs that may use the same hosts.

    Attributes:
        label: The zone, or the compatibility class.
        vms: VMs that slots are owed to.
        vm_memory_bytes: Their memory.
        reserved_memory_bytes: Memory of the slots; None for a class, since classes share slots.
        bounds: What no plan can stay below.
    """

    label: str
    vms: int
    vm_memory_bytes: int
    reserved_memory_bytes: int | None
    bounds: LowerBounds
