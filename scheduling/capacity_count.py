"""How many blocks of a flavor hosts have room for (spec liquid, 13.5)."""

from __future__ import annotations

import numpy as np

from scheduling.columns import Int64Column


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
