"""What an operator promises of a host more than it has (spec hosts, C.1, C.5)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True, kw_only=True)
class OvercommitRule:
    """What hosts with a trait, or without it, may promise of what they have.

    Attributes:
        ratios: ``cpu``, ``memory`` -> at least 1; may be empty.
        trait: A trait of the host.
        is_present: Whether the rule is for hosts that have it.
    """

    ratios: Mapping[str, Decimal]
    trait: str
    is_present: bool


def overcommit_of(traits: Iterable[str], rules: Sequence[OvercommitRule]) -> dict[str, Decimal]:
    """Return the ratios of a host, by resource: of rules in order, the last word for each counts.

    Source: spec hosts, C.5.
    """
    has = frozenset(traits)
    ratios: dict[str, Decimal] = {}
    for rule in rules:
        if (rule.trait in has) is rule.is_present:
            ratios.update(rule.ratios)
    return dict(sorted(ratios.items()))


def decided_ratios(
    ruled: Mapping[str, str] | None, ordered: Mapping[str, str] | None
) -> dict[str, Decimal]:
    """Return what is decided of a host, as both are stored: an order before a rule.

    What neither names is as the cloud says.
    """
    return ordered_ratios(ruled) | ordered_ratios(ordered)
