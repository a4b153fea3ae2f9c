"""The most memory of the flavors of a group, over hosts of which each admits some (liquid, 13.7).

The exclusive split counts smallest flavors. Where the memory per vCPU of a group's flavors differs,
that leaves memory over which larger flavors could use: it is added to the shares here, so that what
is published is what the slot planner can reach.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from capacity.figures.packing import PackedHosts, Packing, SlotSize
from scheduling.columns import BoolColumn, Int64Column


class GroupPacking:
    """Ways to fill hosts with the flavors that each of them admits."""

    def __init__(
        self,
        sizes: Sequence[SlotSize],
        is_admitted: Sequence[BoolColumn],
        most_memory_bytes: int,
    ) -> None:
        """Prepare for hosts of at most ``most_memory_bytes``.

        Args:
            sizes: What slots of the flavors take, in order of preference; those without memory or
                vCPUs are left out.
            is_admitted: bool[N] for each of them: the hosts that it may be on, if there is room.
            most_memory_bytes: Most memory that a host has.
        """
        pairs = [
            (size, mask)
            for size, mask in zip(sizes, is_admitted, strict=True)
            if size.memory_bytes > 0 and size.vcpus > 0
        ]
        self._parts: list[tuple[Int64Column, Packing]] = []
        for rows in _alike([mask for _, mask in pairs]):
            admitted = [size for size, mask in pairs if mask[rows[0]]]
            if admitted:
                self._parts.append((rows, Packing(admitted, most_memory_bytes)))

    def admits(self, host_count: int) -> BoolColumn:
        """Return bool[N], the hosts that admit any flavor."""
        mask = np.zeros(host_count, dtype=np.bool_)
        for rows, _ in self._parts:
            mask[rows] = True
        return mask

    def most(self, memory_bytes: Int64Column, vcpus: Int64Column) -> PackedHosts:
        """Return the best use of int64[N] bytes and vCPUs of the hosts; negative counts as 0."""
        most = PackedHosts(np.zeros_like(memory_bytes), np.zeros_like(vcpus))
        for rows, packing in self._parts:
            most.memory_bytes[rows], most.vcpus[rows] = packing.most(
                memory_bytes[rows], vcpus[rows]
            )
        return most

    def slots(self, row: int, memory_bytes: int) -> tuple[SlotSize, ...]:
        """Return slots that take an amount that ``most`` returned for a host, preferred first."""
        packing = next(one for rows, one in self._parts if row in rows)
        return packing.slots(memory_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldShare:
    """What one group has of each host.

    Attributes:
        memory_bytes: int64[N].
        vcpus: int64[N].
        packing: The ways to use it.
    """

    memory_bytes: Int64Column
    vcpus: Int64Column
    packing: GroupPacking


def packed_shares(
    shares: Mapping[str, HeldShare], left_memory_bytes: Int64Column, left_vcpus: Int64Column
) -> Mapping[str, HeldShare]:
    """Return shares after each group made the most of its own and of what nobody has.

    What is left on a host is first offered in equal parts to the groups that may use it, then the
    whole rest to one after the other by name. No group gets less memory than it had, and what they
    have together never exceeds what they and nobody had.

    Args:
        shares: Group name to what it has.
        left_memory_bytes: int64[N], what nobody has, 0 or more. Reduced by what is taken.
        left_vcpus: int64[N], likewise.
    """
    packed = dict(sorted(shares.items()))
    claims = np.zeros(len(left_memory_bytes), dtype=np.int64)
    for share in packed.values():
        claims += share.packing.admits(len(claims))
    parts = np.maximum(claims, 1)
    offered = (left_memory_bytes // parts, left_vcpus // parts)
    for is_rest in (False, True):
        for name, share in packed.items():
            memory_bytes, vcpus = (left_memory_bytes, left_vcpus) if is_rest else offered
            best = share.packing.most(share.memory_bytes + memory_bytes, share.vcpus + vcpus)
            is_better = best.memory_bytes > share.memory_bytes
            held = HeldShare(
                memory_bytes=np.where(is_better, best.memory_bytes, share.memory_bytes),
                vcpus=np.where(is_better, best.vcpus, share.vcpus),
                packing=share.packing,
            )
            left_memory_bytes -= held.memory_bytes - share.memory_bytes
            left_vcpus -= held.vcpus - share.vcpus
            packed[name] = held
        if not (claims > 1).any():
            break
    return packed


def _alike(masks: Sequence[BoolColumn]) -> list[Int64Column]:
    """Return the hosts, as rows, in parts in which every mask says the same."""
    if not masks or not len(masks[0]):
        return []
    kinds: Int64Column = np.zeros(len(masks[0]), dtype=np.int64)
    seen: list[BoolColumn] = []
    for mask in masks:
        if any(mask is other or np.array_equal(mask, other) for other in seen):
            continue
        seen.append(mask)
        _, kinds = np.unique(2 * kinds + mask, return_inverse=True)
    return [np.flatnonzero(kinds == kind) for kind in range(int(kinds.max()) + 1)]
