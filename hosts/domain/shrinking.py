"""Whether a list that got shorter may be believed (spec commitments, 16.7; style, 9)."""

from __future__ import annotations


def has_shrunk_too_much(before: int | None, now: int, *, max_ratio: float, max_rows: int) -> bool:
    """Return whether a list lost more at once than may be believed.

    Args:
        before: Its length when it was last believed; None when it never was.
        now: Its length.
        max_ratio: Share of it that may go.
        max_rows: Fewer rows than this may always go.

    Source: spec commitments, 16.7 (the same thresholds as for Limes' lists).
    """
    if before is None:
        return False
    lost = before - now
    return lost >= max_rows and lost > before * max_ratio


FEWEST_TO_VANISH = 2
"""A list of one may end in one step, as by deleting the last VM."""


def has_vanished(before: int | None, now: int) -> bool:
    """Return whether nothing is left of a list that had more than one row.

    This is for the part of a list that speaks of one zone: few enough rows that the whole hardly
    shrinks without them, and more likely left out of an answer than gone at once.

    Args:
        before: Its length when it was last believed; None when it never was.
        now: Its length.

    Source: spec commitments, 16.7; spec failover, 17.9 ("no host reports instances").
    """
    return before is not None and before >= FEWEST_TO_VANISH and not now


def length_from_now(counted: int, *, before: int | None, now: int | None) -> int:
    """Return how long a list that was counted a while ago is expected to be from now on.

    What was told to be gone since then may be counted still.

    Args:
        counted: Its length as it was counted.
        before: Its expected length before that; None when there was none.
        now: Its expected length now, smaller by what was told to be gone meanwhile.
    """
    if before is None or now is None:
        return counted
    return max(0, counted - max(0, before - now))
