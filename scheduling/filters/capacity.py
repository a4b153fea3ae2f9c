"""The capacity filter (spec scheduling, 7.11; commitments, 10.4)."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from scheduling.columns import BoolColumn
from scheduling.filters.base import Filter
from scheduling.free import FreeColumns
from scheduling.request import PlacementRequest
from scheduling.resources import GIB
from scheduling.table import HostTable

CAPACITY_FILTER = "filter_has_enough_capacity"


def capacity_filter(
    *,
    lock_reserved: bool = False,
    ignored_kinds: Collection[str] = (),
    ignore_allocations: bool = False,
) -> Filter:
    """Return the capacity filter with parameters of its own, which add to those of the call.

    Args:
        lock_reserved: Never release committed slots (``lockReserved``).
        ignored_kinds: Kinds of reservations that block nothing (``ignoredReservationTypes``).
        ignore_allocations: Take hosts as if no VM ran on them (``ignoreAllocations``).

    Source: spec scheduling, 7.11.
    """
    if not (lock_reserved or ignored_kinds or ignore_allocations):
        return filter_has_enough_capacity

    def adapt(request: PlacementRequest) -> PlacementRequest:
        return replace(
            request,
            lock_reservations=request.lock_reservations or lock_reserved,
            ignored_kinds=request.ignored_kinds | frozenset(ignored_kinds),
            assume_empty_hosts=request.assume_empty_hosts or ignore_allocations,
        )

    return replace(filter_has_enough_capacity, adapt=adapt)


def _mask(_table: HostTable, request: PlacementRequest, free: FreeColumns) -> BoolColumn:
    asked = request.asked
    kept: BoolColumn = free.memory_bytes >= asked.memory_bytes
    if asked.vcpus:
        kept &= free.vcpus >= asked.vcpus
    return kept


def _remedy(_table: HostTable, request: PlacementRequest, free: FreeColumns, row: int) -> str:
    asked = request.asked
    parts = []
    missing_bytes = asked.memory_bytes - int(free.memory_bytes[row])
    missing_vcpus = asked.vcpus - int(free.vcpus[row])
    if missing_bytes > 0:
        hundredths = -(-missing_bytes * 100 // GIB)
        parts.append(f"{hundredths / 100:g} GiB of memory")
    if missing_vcpus > 0:
        parts.append(f"{missing_vcpus} vCPUs")
    return f"short of {' and '.join(parts)}"


filter_has_enough_capacity = Filter(
    name=CAPACITY_FILTER, mask=_mask, measures_room=True, remedy=_remedy
)
"""Keep hosts with room for the request; hosts without capacity figures have none (7.11)."""
