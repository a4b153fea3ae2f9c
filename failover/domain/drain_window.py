"""When hosts may next be drained: as commitments end and begin (issue 6, "next safe window")."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime

MOST_CHECKS = 24


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
    is_safe_at: Callable[[datetime], bool], changes: Iterable[datetime], *, now: datetime
) -> SafeWindow | None:
    """Return the next time at which a drain is safe, as far as is known now.

    Args:
        is_safe_at: Whether the drain is safe once everything until then has happened.
        changes: When commitments end or begin; those in the past are ignored, and only the next
            24 are looked at.
        now: The present.

    Returns:
        The first safe stretch between changes, up to the first change that ends it; None if no
        known change makes the drain safe.
    """
    times = [now, *sorted({moment for moment in changes if moment > now})[:MOST_CHECKS]]
    start: datetime | None = None
    for moment in times:
        is_safe = is_safe_at(moment)
        if is_safe and start is None:
            start = moment
        elif not is_safe and start is not None:
            return SafeWindow(starts_at=start, ends_at=moment)
    return None if start is None else SafeWindow(starts_at=start, ends_at=None)
