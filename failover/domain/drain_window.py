"""When hosts may next be drained, as room grows and shrinks (issue 6, "next safe window")."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime

MOST_STRETCHES = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class SafeWindow:
    """When hosts may be drained.

    Attributes:
        starts_at: From when on.
        ends_at: When something that is known now would make it unsafe; None without any.
    """

    starts_at: datetime
    ends_at: datetime | None


def next_safe_window(
    is_safe_at: Callable[[datetime], bool],
    *,
    growing: Iterable[datetime],
    shrinking: Iterable[datetime],
    now: datetime,
    until: datetime | None = None,
) -> SafeWindow | None:
    """Return the next time at which a drain is safe, as far as is known now.

    Between two moments at which room shrinks it only grows, so the last moment of such a stretch
    tells whether it is ever safe there, and bisection finds from when on.

    Args:
        is_safe_at: Whether the drain is safe once everything until then has happened.
        growing: When room is given back or hosts come; the past is ignored.
        shrinking: When hosts go; likewise, and only the next 50 are looked at.
        until: From when on changes are not known any more; what comes then does not count.

    Returns:
        The first safe stretch, up to the moment that ends it; None if no known change makes the
        drain safe.
    """
    going = sorted({moment for moment in shrinking if moment > now})
    starts = [now, *(moment for moment in going if until is None or moment < until)]
    starts, unseen = starts[:MOST_STRETCHES], starts[MOST_STRETCHES:]
    until = unseen[0] if unseen else until
    later = sorted({moment for moment in growing if moment > now} - set(starts))
    if until is not None:
        later = [moment for moment in later if moment < until]
    found: datetime | None = None
    for place, start in enumerate(starts):
        end = starts[place + 1] if place + 1 < len(starts) else None
        if found is not None:
            if not is_safe_at(start):
                return SafeWindow(starts_at=found, ends_at=start)
            continue
        moments = [start, *(one for one in later if start < one and (end is None or one < end))]
        found = _first_safe(is_safe_at, moments)
    return None if found is None else SafeWindow(starts_at=found, ends_at=until)


def _first_safe(is_safe_at: Callable[[datetime], bool], moments: list[datetime]) -> datetime | None:
    """Return the first safe moment of a stretch in which room only grows."""
    if is_safe_at(moments[0]):
        return moments[0]
    if len(moments) == 1 or not is_safe_at(moments[-1]):
        return None
    low, high = 1, len(moments) - 1
    while low < high:
        middle = (low + high) // 2
        if is_safe_at(moments[middle]):
            high = middle
        else:
            low = middle + 1
    return moments[low]
