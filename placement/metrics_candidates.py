"""Metrics of candidate searches and of the provider snapshot (spec placement, 10.2)."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Final

from prometheus_client import Counter, Gauge, Histogram

from placement.domain.snapshot_differences import PARTS

MOST_GROUPS: Final = 4
_SIZES: Final = (0, 1, 3, 10, 30, 100, 300, 1000, 3000, 10_000, 30_000)

CANDIDATES_SECONDS = Histogram(
    "placement_candidates_seconds",
    "Time to find and encode allocation candidates, by number of request groups.",
    ("groups", "limited"),
    buckets=(0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10),
)
CANDIDATES_RETURNED = Histogram(
    "placement_candidates_returned", "Allocation candidates of an answer.", buckets=_SIZES
)
RELOAD_SECONDS = Histogram(
    "placement_snapshot_reload_seconds",
    "Time to read all providers into the snapshot of a process.",
    buckets=(0.01, 0.05, 0.1, 0.5, 1, 2, 5, 10, 30, 60),
)
SNAPSHOT_PROVIDERS = Gauge(
    "placement_snapshot_providers",
    "Providers in the snapshot of a process.",
    multiprocess_mode="max",
)
SNAPSHOT_AGE = Gauge(
    "placement_snapshot_age_changes",
    "Trees that had changed when a process last brought its snapshot forward.",
    multiprocess_mode="max",
)
REFRESHED_TREES = Histogram(
    "placement_snapshot_refreshed_trees",
    "Trees that changed between two looks of a process at the change log.",
    buckets=_SIZES,
)

CHECKS = Counter(
    "placement_snapshot_checks_total",
    "Comparisons of the provider snapshot of a process with one built anew.",
    ("outcome",),
)
DIFFERENCES = Counter(
    "placement_snapshot_differences_total",
    "Providers, inventories and names that the provider snapshot of a process had wrong.",
    ("part",),
)
for _outcome in ("equal", "different"):
    CHECKS.labels(outcome=_outcome)
for _part in PARTS:
    DIFFERENCES.labels(part=_part)


@cache
def _duration(groups: int, *, is_limited: bool) -> Histogram:
    words = str(groups) if groups < MOST_GROUPS else f"{MOST_GROUPS}+"
    return CANDIDATES_SECONDS.labels(groups=words, limited=str(is_limited).lower())


def observe_candidates(*, groups: int, is_limited: bool, found: int, seconds: float) -> None:
    """Count an answered search."""
    _duration(min(groups, MOST_GROUPS), is_limited=is_limited).observe(seconds)
    CANDIDATES_RETURNED.observe(found)


def observe_check(differences: Mapping[str, int]) -> None:
    """Count a comparison."""
    CHECKS.labels(outcome="different" if differences else "equal").inc()
    for part, count in differences.items():
        DIFFERENCES.labels(part=part).inc(count)


_shown: Final[dict[Gauge, int]] = {}


def observe_refresh(*, providers: int, trees: int) -> None:
    """Count a look at the change log."""
    _show(SNAPSHOT_PROVIDERS, providers)
    _show(SNAPSHOT_AGE, trees)
    REFRESHED_TREES.observe(trees)


def _show(gauge: Gauge, number: int) -> None:
    """Set a gauge, which takes longer than to find that it shows the number already."""
    if _shown.get(gauge) != number:
        _shown[gauge] = number
        gauge.set(number)
