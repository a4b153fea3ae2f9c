"""Which VMs a run handles, and when the next run comes (spec failover, 9.5, 10)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

_Item = TypeVar("_Item")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """What decides on the next run.

    Attributes:
        hit_limit: Whether VMs were left for the next run.
        succeeded: Reservations created and reused.
        failed: Reservations that could not be had.
    """

    hit_limit: bool
    succeeded: int
    failed: int


def start_offset(
    count: int,
    *,
    limit: int,
    run_number: int,
    rotation_interval: int,
    draw: Callable[[int], int],
) -> int:
    """Return where in the sorted list of VMs a run starts.

    Args:
        count: VMs that miss reservations.
        limit: Most VMs to handle; 0 and less is no limit.
        run_number: Number of the run, from 1.
        rotation_interval: Every so many runs start at random; 0 never does.
        draw: Returns a random number below its argument.

    Source: spec failover, 10.
    """
    has_turn = rotation_interval > 0 and run_number % rotation_interval == 0
    return draw(count) if has_turn and 0 < limit < count else 0


def selected(items: Sequence[_Item], *, limit: int, offset: int) -> tuple[list[_Item], bool]:
    """Return the items of a run, wrapping around at the end, and whether some are left out.

    Source: spec failover, 10.
    """
    if limit <= 0 or limit >= len(items):
        return list(items), False
    return [items[(offset + step) % len(items)] for step in range(limit)], True


def next_interval_seconds(
    result: RunResult | None,
    *,
    interval_seconds: float,
    short_interval_seconds: float,
    min_successes: int,
    max_failures: int,
) -> float:
    """Return how long after its end a run is followed by the next one.

    Args:
        result: What the run did; None if it ended with an error.
        interval_seconds: The normal distance.
        short_interval_seconds: The distance while there is much to do and it goes well.
        min_successes: Fewest successes for the short distance.
        max_failures: Most failures for it.

    Source: spec failover, 9.5.
    """
    goes_well = (
        result is not None
        and result.hit_limit
        and result.succeeded >= min_successes
        and result.failed <= max_failures
        and short_interval_seconds > 0
    )
    return short_interval_seconds if goes_well else interval_seconds
