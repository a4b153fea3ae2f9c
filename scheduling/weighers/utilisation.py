"""Weighers by size and utilisation of a host (spec scheduling, 8.2, 8.3, 16.4)."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import numpy as np

from scheduling.columns import FloatColumn, Int64Column
from scheduling.free import FreeColumns
from scheduling.request import PlacementRequest
from scheduling.table import HostTable
from scheduling.weighers.base import Weigher

RESOURCE_MEMORY = "memory"
RESOURCE_CPU = "cpu"
MEMORY_ONLY: Mapping[str, float] = MappingProxyType({RESOURCE_MEMORY: 1.0})


def kvm_binpack(
    *,
    resource_weights: Mapping[str, float] = MEMORY_ONLY,
    multiplier: float = 1.0,
    count_reservations: bool = False,
) -> Weigher:
    """Return the weigher that prefers full hosts; a negative multiplier prefers empty ones.

    Activation: weighted mean over the resources of ``(used + requested) / effective``, leaving out
    resources that the host lacks or the request does not ask for; 0 if none is left.

    Args:
        resource_weights: ``memory`` and / or ``cpu`` -> weight above 0 (``resourceWeights``).
        multiplier: Factor of the squashed activation.
        count_reservations: Count what the free columns lack as used, so blocks as well as VMs;
            otherwise only what is allocated. Placing slots needs it, or hosts full of
            reservations look empty.

    Raises:
        ValueError: If there is no weight, an unknown resource, or a weight that is not above 0.

    Source: spec scheduling, 8.3; counting blocks: 16.4.
    """
    memory_weight, cpu_weight = checked_weights("kvm_binpack", resource_weights, is_zero_fine=False)

    def activation(table: HostTable, request: PlacementRequest, free: FreeColumns) -> FloatColumn:
        rows = free.rows
        asked = request.asked
        parts: list[tuple[float, Int64Column, Int64Column]] = []
        if memory_weight and asked.memory_bytes:
            effective = table.eff_memory_bytes[rows]
            if count_reservations:
                used = effective - free.memory_bytes
            else:
                used = table.alloc_memory_bytes[rows]
            parts.append((memory_weight, used + asked.memory_bytes, effective))
        if cpu_weight and asked.vcpus:
            effective = table.eff_vcpus[rows]
            used = effective - free.vcpus if count_reservations else table.alloc_vcpus[rows]
            parts.append((cpu_weight, used + asked.vcpus, effective))
        return weighted_mean_utilisation(parts, rows_count=len(free.memory_bytes))

    return Weigher(name="kvm_binpack", activation=activation, multiplier=multiplier)


def kvm_prefer_smaller_hosts(
    *, resource_weights: Mapping[str, float] = MEMORY_ONLY, multiplier: float = 1.0
) -> Weigher:
    """Return the weigher that keeps large hosts for large VMs.

    Per resource, over surviving hosts with effective capacity: 1 for the smallest, 0 for the
    largest, linear between; left out where a host lacks it or all are equal. Activation: weighted
    mean, 0 if nothing is left.

    Args:
        resource_weights: ``memory`` and / or ``cpu`` -> weight, 0 or more (``resourceWeights``).
        multiplier: Factor of the squashed activation.

    Raises:
        ValueError: If there is no weight, an unknown resource, or a negative weight.

    Source: spec scheduling, 8.2.
    """
    name = "kvm_prefer_smaller_hosts"
    memory_weight, cpu_weight = checked_weights(name, resource_weights, is_zero_fine=True)

    def activation(table: HostTable, _request: PlacementRequest, free: FreeColumns) -> FloatColumn:
        total: FloatColumn = np.zeros(len(free.vcpus), dtype=np.float64)
        weights: FloatColumn = np.zeros(len(free.vcpus), dtype=np.float64)
        for weight, column in (
            (memory_weight, table.eff_memory_bytes[free.rows]),
            (cpu_weight, table.eff_vcpus[free.rows]),
        ):
            has_capacity = column > 0
            if not weight or not has_capacity.any():
                continue
            smallest = int(column[has_capacity].min())
            largest = int(column.max())
            if smallest == largest:
                continue
            share = 1.0 - (column - smallest) / (largest - smallest)
            total += np.where(has_capacity, weight * share, 0.0)
            weights += np.where(has_capacity, weight, 0.0)
        return np.divide(total, weights, out=np.zeros(len(total)), where=weights > 0)

    return Weigher(
        name=name,
        activation=activation,
        multiplier=multiplier,
        is_row_local=False,
        is_of_survivors=True,
    )


def checked_weights(
    name: str, resource_weights: Mapping[str, float], *, is_zero_fine: bool
) -> tuple[float, float]:
    """Return the weights of memory and cpu, 0.0 for one that is not given.

    Raises:
        ValueError: If there is no weight, an unknown resource, or a weight that is too small.
    """
    unknown = sorted(set(resource_weights) - {RESOURCE_MEMORY, RESOURCE_CPU})
    if unknown:
        raise ValueError(f"{name} knows no resource {', '.join(unknown)}")
    smallest = min(resource_weights.values(), default=-1.0)
    if not smallest >= 0 or (smallest == 0 and not is_zero_fine):
        wanted = "weights of 0 or more" if is_zero_fine else "weights above 0"
        raise ValueError(f"{name} needs {wanted}")
    return resource_weights.get(RESOURCE_MEMORY, 0.0), resource_weights.get(RESOURCE_CPU, 0.0)


def weighted_mean_utilisation(
    parts: list[tuple[float, Int64Column, Int64Column]], *, rows_count: int
) -> FloatColumn:
    """Return the mean of ``used / effective`` over the parts with a positive effective figure."""
    total: FloatColumn = np.zeros(rows_count, dtype=np.float64)
    weights: FloatColumn = np.zeros(rows_count, dtype=np.float64)
    for weight, used, effective in parts:
        has_capacity = effective > 0
        share = used / np.maximum(effective, 1)
        total += np.where(has_capacity, weight * share, 0.0)
        weights += np.where(has_capacity, weight, 0.0)
    return np.divide(total, weights, out=np.zeros(rows_count), where=weights > 0)
