"""When what is free is used up: the trend of use, and what is known to come back or be taken."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import groupby
from statistics import median, quantiles
from typing import Final

#: Fewer days say nothing of a trend: a week repeats itself, and two of them show that it does.
LEAST_DAYS: Final = 14
HORIZON: Final = timedelta(days=365)
DAY: Final = timedelta(days=1)

#: Amount of some moment on, in the unit of the figures: negative when something is taken.
Change = tuple[datetime, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Runway:
    """When a figure reaches zero; None where it does not within a year.

    Attributes:
        days_known: How many days the trend is of.
        growth_per_day: The likely growth of use in a day; negative when it falls.
        earliest: If use grows as on the faster days (three in four were slower).
        likely: If it grows by the median.
        latest: If it grows as on the slower days (three in four were faster).
    """

    days_known: int
    growth_per_day: int
    earliest: datetime | None
    likely: datetime | None
    latest: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class NotKnown:
    """There is too little history for a trend.

    Attributes:
        days_known: How many days are there, of :data:`LEAST_DAYS`.
    """

    days_known: int


def runway(
    used: Sequence[tuple[datetime, int]], *, left: int, changes: Sequence[Change], now: datetime
) -> Runway | NotKnown:
    """Return when what is left is used up.

    The trend is the median of the growth between every two days, which a single jump or an outage
    does not bend; its quartiles are the band.

    Args:
        used: What was used, in the order of time; the last of each UTC day counts.
        left: What is left now.
        changes: What comes back or is taken at a known time; those until ``now`` are in ``left``.
    """
    by_day = {at.date(): (at, amount) for at, amount in used}
    points = sorted(by_day.values())
    if len(points) < LEAST_DAYS:
        return NotKnown(days_known=len(points))
    slopes = [
        (late[1] - early[1]) / ((late[0] - early[0]) / DAY)
        for number, early in enumerate(points)
        for late in points[number + 1 :]
    ]
    slow, _, fast = quantiles(slopes, n=4, method="inclusive")
    likely = median(slopes)
    coming = sorted(change for change in changes if now < change[0] <= now + HORIZON)
    return Runway(
        days_known=len(points),
        growth_per_day=round(likely),
        earliest=used_up(fast, left=left, changes=coming, now=now),
        likely=used_up(likely, left=left, changes=coming, now=now),
        latest=used_up(slow, left=left, changes=coming, now=now),
    )


def used_up(
    growth_per_day: float, *, left: int, changes: Sequence[Change], now: datetime
) -> datetime | None:
    """Return when nothing is left at a steady growth, or None within a year.

    Args:
        growth_per_day: How much more is used each day; less when negative.
        left: What is left now.
        changes: After ``now``, in the order of time.
    """
    if left <= 0:
        return now
    at, rest = now, float(left)
    together = groupby((*changes, (now + HORIZON, 0)), key=_moment)
    for moment, amount in ((moment, sum(one[1] for one in of_it)) for moment, of_it in together):
        grown = growth_per_day * ((moment - at) / DAY)
        if grown >= rest:
            return at + DAY * (rest / growth_per_day)
        at, rest = moment, rest - grown + amount
        if rest <= 0:
            return at
    return None


def _moment(change: Change) -> datetime:
    return change[0]
