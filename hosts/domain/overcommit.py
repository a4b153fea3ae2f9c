"""What an operator promises of a host more than it has (spec hosts, C.1, C.5)."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import Final

CPU: Final = "cpu"
MEMORY: Final = "memory"
#: What may be oversold by order; the rest is as the cloud's lists say.
RESOURCES: Final = (CPU, MEMORY)
LEAST: Final = Decimal(1)
MOST: Final = Decimal(1000)
_STEP: Final = Decimal("0.001")


def ratio_problem(resource: str, ratio: Decimal) -> str:
    """Return why a ratio of a resource may not be ordered; empty when it may."""
    if resource not in RESOURCES:
        return f"is not known; known are {', '.join(RESOURCES)}"
    if not ratio.is_finite() or not LEAST <= ratio < MOST:
        return f"must be from {LEAST} and below {MOST}"
    if ratio != ratio.quantize(_STEP):
        return "has three decimals at most"
    return ""


def ordered_ratios(stored: Mapping[str, str] | None) -> dict[str, Decimal]:
    """Return the ratios of an order as it is stored; none of a host without one."""
    return {resource: Decimal(text) for resource, text in (stored or {}).items()}


def stored_ratios(ratios: Mapping[str, Decimal]) -> dict[str, str]:
    """Return ratios as they are stored, in one spelling."""
    return {
        resource: f"{ratios[resource].normalize():f}"
        for resource in RESOURCES
        if resource in ratios
    }
