"""Weighers of VMware hosts, which work on knowledge instead of the table (17.1)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from scheduling.columns import FloatColumn, Int64Column
from scheduling.free import FreeColumns
from scheduling.knowledge import HostContention, HostUtilisation
from scheduling.request import PlacementRequest
from scheduling.table import HostTable
from scheduling.weighers.base import Weigher
from scheduling.weighers.utilisation import (
    MEMORY_ONLY,
    checked_weights,
    weighted_mean_utilisation,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """A linear map from a range of figures to a range of activations.

    Attributes:
        lower: Figure that maps to ``lower_activation``.
        upper: Figure that maps to ``upper_activation``.
        lower_activation: Activation of ``lower``.
        upper_activation: Activation of ``upper``.
    """

    lower: float = 0.0
    upper: float = 10.0
    lower_activation: float = 0.0
    upper_activation: float = 0.0

    def scaled(self, figures: FloatColumn) -> FloatColumn:
        """Return the activations, clamped to their range; 0 if either range is empty.

        Source: spec scheduling, 17.1 ``MinMaxScale``.
        """
        if self.lower == self.upper or self.lower_activation == self.upper_activation:
            return np.zeros(len(figures), dtype=np.float64)
        share = (figures - self.lower) / (self.upper - self.lower)
        reach = self.upper_activation - self.lower_activation
        low, high = sorted((self.lower_activation, self.upper_activation))
        scaled: FloatColumn = np.clip(self.lower_activation + share * reach, low, high)
        return scaled


AVERAGE_BOUNDS = Bounds(upper_activation=-0.75)
MAXIMUM_BOUNDS = Bounds(upper_activation=-0.25)


def checked_bounds(bounds: Bounds) -> Bounds:
    """Return the bounds.

    Raises:
        ValueError: If lower and upper bound, or both activations, are equal.
    """
    if bounds.lower == bounds.upper or bounds.lower_activation == bounds.upper_activation:
        raise ValueError("lower and upper bounds must differ")
    return bounds


def vmware_binpack(
    *,
    utilisation: Mapping[str, HostUtilisation],
    resource_weights: Mapping[str, float] = MEMORY_ONLY,
    multiplier: float = 1.0,
) -> Weigher:
    """Return the weigher that prefers full VMware hosts; negative multipliers prefer empty ones.

    Args:
        utilisation: Host -> utilisation, not empty.
        resource_weights: ``memory`` and / or ``cpu`` -> weight above 0 (``resourceWeights``).
        multiplier: Factor of the squashed activation.

    Raises:
        ValueError: If the knowledge is missing or a weight is not valid.

    Source: spec scheduling, 17.1 and 8.3.
    """
    weights = checked_weights("vmware_binpack", resource_weights, is_zero_fine=False)
    _need(utilisation, "host-utilization")

    def activation(table: HostTable, request: PlacementRequest, free: FreeColumns) -> FloatColumn:
        figures = np.zeros((4, len(table)), dtype=np.int64)
        for host, one in utilisation.items():
            if host in table.row_of:
                figures[:, table.row_of[host]] = (
                    one.used_memory_bytes,
                    one.memory_bytes,
                    one.used_vcpus,
                    one.vcpus,
                )
        used_memory, memory, used_vcpus, vcpus = figures[:, free.rows]
        asked = request.asked
        parts: list[tuple[float, Int64Column, Int64Column]] = []
        if weights[0] and asked.memory_bytes:
            parts.append((weights[0], used_memory + asked.memory_bytes, memory))
        if weights[1] and asked.vcpus:
            parts.append((weights[1], used_vcpus + asked.vcpus, vcpus))
        return weighted_mean_utilisation(parts, rows_count=len(free.vcpus))

    return Weigher(name="vmware_binpack", activation=activation, multiplier=multiplier)


def vmware_avoid_contended_hosts(
    *,
    name: str,
    contention: Mapping[str, HostContention],
    average_bounds: Bounds = AVERAGE_BOUNDS,
    maximum_bounds: Bounds = MAXIMUM_BOUNDS,
    multiplier: float = 1.0,
) -> Weigher:
    """Return the weigher that avoids hosts with CPU contention.

    Args:
        name: ``vmware_avoid_long_term_contended_hosts`` or its short-term sister.
        contention: Host -> contention, not empty; unknown hosts get 0.
        average_bounds: Scale of the average.
        maximum_bounds: Scale of the maximum.
        multiplier: Factor of the squashed activation.

    Raises:
        ValueError: If the knowledge is missing or bounds are equal.

    Source: spec scheduling, 17.1.
    """
    _need(contention, "contended-hosts")
    scales = (checked_bounds(average_bounds), checked_bounds(maximum_bounds))

    def activation(table: HostTable, _request: PlacementRequest, free: FreeColumns) -> FloatColumn:
        known = [
            (table.row_of[host], one) for host, one in contention.items() if host in table.row_of
        ]
        column = np.zeros(len(table), dtype=np.float64)
        average = np.array([one.average_percent for _, one in known], dtype=np.float64)
        maximum = np.array([one.maximum_percent for _, one in known], dtype=np.float64)
        column[[row for row, _ in known]] = scales[0].scaled(average) + scales[1].scaled(maximum)
        return column[free.rows]

    return Weigher(name=name, activation=activation, multiplier=multiplier)


def vmware_anti_affinity_noisy_projects(
    *,
    noisiness: Mapping[str, Mapping[str, float]],
    bounds: Bounds,
    multiplier: float = 1.0,
) -> Weigher:
    """Return the weigher that keeps a noisy project off the hosts where it is noisy already.

    Args:
        noisiness: Project -> host -> average CPU of the project there, not empty.
        bounds: Scale of the average CPU.
        multiplier: Factor of the squashed activation.

    Raises:
        ValueError: If the knowledge is missing or bounds are equal.

    Source: spec scheduling, 17.1.
    """
    _need(noisiness, "vmware-project-noisiness")
    scale = checked_bounds(bounds)

    def activation(table: HostTable, request: PlacementRequest, free: FreeColumns) -> FloatColumn:
        hosts = noisiness.get(request.project_id, {})
        known = [(table.row_of[host], cpu) for host, cpu in hosts.items() if host in table.row_of]
        column = np.zeros(len(table), dtype=np.float64)
        column[[row for row, _ in known]] = scale.scaled(
            np.array([cpu for _, cpu in known], dtype=np.float64)
        )
        return column[free.rows]

    return Weigher(
        name="vmware_anti_affinity_noisy_projects", activation=activation, multiplier=multiplier
    )


def _need(knowledge: Mapping[str, object], name: str) -> None:
    if not knowledge:
        raise ValueError(f"knowledge {name} is missing or empty")
