"""How many blocks of a flavor hosts have room for (spec liquid, 13.5)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from scheduling.engine import SLOT_PIPELINE, Pipeline, passing_hosts
from scheduling.filters import free_columns
from scheduling.request import PlacementRequest, UnplaceableRequestError
from scheduling.table import HostTable, Int64Column


class PlaceableCount(NamedTuple):
    """The outcome of a capacity probe.

    Attributes:
        hosts: Hosts with room for at least one block.
        slots: Blocks that all hosts together have room for.
    """

    hosts: int
    slots: int


def slots_per_host(
    free_memory_bytes: Int64Column,
    free_vcpus: Int64Column,
    flavor_memory_bytes: int,
    flavor_vcpus: int,
) -> Int64Column:
    """Return how often a flavor fits on each host.

    Per host the smaller of both quotients, rounded down because only whole blocks count; the vCPU
    term is left out for a flavor without vCPUs. Negative free room gives 0.

    Args:
        free_memory_bytes: int64[N].
        free_vcpus: int64[N].
        flavor_memory_bytes: Memory of one block, more than 0.
        flavor_vcpus: vCPUs of one block, 0 or more.

    Returns:
        int64[N], never negative.

    Raises:
        ValueError: If the flavor has no memory or negative vCPUs.

    Source: spec liquid, 13.5.
    """
    if flavor_memory_bytes <= 0 or flavor_vcpus < 0:
        raise ValueError("a flavor needs memory, and not less than 0 vCPUs")
    slots: Int64Column = np.maximum(free_memory_bytes, 0) // flavor_memory_bytes
    if flavor_vcpus:
        slots = np.minimum(slots, np.maximum(free_vcpus, 0) // flavor_vcpus)
    return slots


def placeable(
    table: HostTable, request: PlacementRequest, pipeline: Pipeline = SLOT_PIPELINE
) -> PlaceableCount:
    """Count the hosts that could take a request, and how many of it they could take together.

    Hosts must pass the pipeline. With ``assume_empty_hosts`` (the total probe) effective capacity
    is counted, otherwise what is free for the request. Nothing is placed.

    Raises:
        UnplaceableRequestError: If the request asks for no memory.

    Source: spec liquid, 13.5.
    """
    if not request.memory_bytes:
        raise UnplaceableRequestError(request.request_key)
    if request.assume_empty_hosts:
        memory_bytes, vcpus = table.eff_memory_bytes, table.eff_vcpus
    else:
        free = free_columns(table, request)
        memory_bytes, vcpus = free.memory_bytes, free.vcpus
    passing = passing_hosts(table, request, pipeline)
    slots = slots_per_host(
        memory_bytes[passing], vcpus[passing], request.memory_bytes, request.vcpus
    )
    return PlaceableCount(hosts=int(np.count_nonzero(slots)), slots=int(slots.sum()))
