"""Weighers: which of the possible hosts is best (spec scheduling, 5.2, 8.1, 8.3, 15.12)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TypeAlias

import numpy as np

from scheduling.filters import FreeColumns
from scheduling.request import PlacementRequest
from scheduling.table import FloatColumn, HostTable, Int64Column, UInt64Column, text_hash

RESOURCE_MEMORY = "memory"
RESOURCE_CPU = "cpu"
MEMORY_ONLY: Mapping[str, float] = MappingProxyType({RESOURCE_MEMORY: 1.0})

ActivationFunction: TypeAlias = Callable[[HostTable, PlacementRequest, FreeColumns], FloatColumn]

_MIX_INCREMENT = np.uint64(0x9E3779B97F4A7C15)
_MIX_FACTOR_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_FACTOR_2 = np.uint64(0x94D049BB133111EB)
_SHIFT_1 = np.uint64(30)
_SHIFT_2 = np.uint64(27)
_SHIFT_3 = np.uint64(31)


@dataclass(frozen=True, slots=True, kw_only=True)
class Weigher:
    """A weigher as a step of a pipeline.

    Attributes:
        name: Stable name, as in explanations and pipeline definitions.
        activation: Returns one figure for each row of the free columns; 0 means "no effect".
        multiplier: Factor of ``tanh(activation)`` in the score.
        is_row_local: Whether the activation of a host depends on that host alone. The engine then
            follows changes row by row, else it weighs all survivors again.
    """

    name: str
    activation: ActivationFunction
    multiplier: float = 1.0
    is_row_local: bool = True


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
    unknown = sorted(set(resource_weights) - {RESOURCE_MEMORY, RESOURCE_CPU})
    if unknown:
        raise ValueError(f"kvm_binpack knows no resource {', '.join(unknown)}")
    if not resource_weights or min(resource_weights.values()) <= 0:
        raise ValueError("kvm_binpack needs weights above 0")
    memory_weight = resource_weights.get(RESOURCE_MEMORY, 0.0)
    cpu_weight = resource_weights.get(RESOURCE_CPU, 0.0)

    def activation(table: HostTable, request: PlacementRequest, free: FreeColumns) -> FloatColumn:
        rows = free.rows
        parts: list[tuple[float, Int64Column, Int64Column]] = []
        if memory_weight and request.memory_bytes:
            effective = table.eff_memory_bytes[rows]
            if count_reservations:
                used = effective - free.memory_bytes
            else:
                used = table.alloc_memory_bytes[rows]
            parts.append((memory_weight, used + request.memory_bytes, effective))
        if cpu_weight and request.vcpus:
            effective = table.eff_vcpus[rows]
            used = effective - free.vcpus if count_reservations else table.alloc_vcpus[rows]
            parts.append((cpu_weight, used + request.vcpus, effective))
        return _weighted_mean_utilisation(parts, rows_count=len(free.memory_bytes))

    return Weigher(name="kvm_binpack", activation=activation, multiplier=multiplier)


def _weighted_mean_utilisation(
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


def tie_break_hashes(name_hashes: UInt64Column, request_key: str) -> UInt64Column:
    """Return one stable pseudo-random number per host for a request; the lowest wins a tie.

    The mix of both hashes (splitmix64 finaliser) is the same in every process and spreads the
    choices of different requests evenly.

    Args:
        name_hashes: uint64[K], hashes of the tied hosts' names.
        request_key: Key of the request.

    Source: spec scheduling, 5.2 "Ties".
    """
    mixed: UInt64Column = (name_hashes ^ np.uint64(text_hash(request_key))) + _MIX_INCREMENT
    mixed = (mixed ^ (mixed >> _SHIFT_1)) * _MIX_FACTOR_1
    mixed = (mixed ^ (mixed >> _SHIFT_2)) * _MIX_FACTOR_2
    return mixed ^ (mixed >> _SHIFT_3)
