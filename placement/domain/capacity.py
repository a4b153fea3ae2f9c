"""Arithmetic of inventories (spec placement, 5.3).

Double precision throughout, in Python and in the database alike; ratios are never rounded.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

MAX_INTEGER = 2_147_483_647


@dataclass(frozen=True, slots=True, kw_only=True)
class InventoryAmounts:
    """What a provider has of a class, in units of the class."""

    total: int
    reserved: int = 0
    min_unit: int = 1
    max_unit: int = MAX_INTEGER
    step_size: int = 1
    allocation_ratio: float = 1.0

    @property
    def capacity_real(self) -> float:
        """What may be allocated in all, not truncated: the figure of fit checks."""
        return (self.total - self.reserved) * self.allocation_ratio

    @property
    def capacity(self) -> int:
        """What may be allocated in all, truncated: the figure that is shown."""
        return int(self.capacity_real)

    def allows_amount(self, amount: int) -> bool:
        """Return whether one allocation may have this amount, whatever is used."""
        return self.min_unit <= amount <= self.max_unit and amount % self.step_size == 0

    def has_room(self, amount: int, *, used: int) -> bool:
        """Return whether one more allocation of ``amount`` fits beside ``used``."""
        return used + amount <= self.capacity_real and self.allows_amount(amount)


def is_valid_ratio(ratio: float) -> bool:
    """Return whether a ratio is a number one can calculate with."""
    return math.isfinite(ratio)
