"""What a commitment had promised and used between two looks at it, hour by hour.

A look tells what is the case at its time. What was so at the look before is taken to have lasted
until the promise changed, by the time of its acceptance, or until this look. Of what is gone
without a known end nothing is taken: nobody saw when it went. All times count in whole seconds,
rounded down.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

HOUR = timedelta(hours=1)
SECOND = timedelta(seconds=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Promise:
    """A commitment as a look found it; amounts in MiB of memory, or vCPUs.

    Attributes:
        used: At most what is promised.
        since: From when on these amounts hold; None for always.
        until: When the term ends; None for never.
    """

    promised: int
    used: int
    since: datetime | None = None
    until: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HourShare:
    """A part of an hour; amounts times seconds."""

    at: datetime
    seconds: int
    promised_seconds: int
    used_seconds: int


def hour_shares(
    before: Promise | None, after: Promise | None, *, last: datetime, now: datetime
) -> list[HourShare]:
    """Return what was promised and used from one look to the next, at most one share an hour.

    Args:
        before: The commitment at the look before; None if it was not there.
        after: The commitment now; None if it is not there any more.
        last: When the look before was.
        now: When this look was.
    """
    summed: dict[datetime, HourShare] = {}
    for promise, start, end in _spans(before, after, whole_second(last), whole_second(now)):
        for at, seconds in hours_between(start, end):
            known = summed.get(at)
            summed[at] = HourShare(
                at=at,
                seconds=seconds + (known.seconds if known else 0),
                promised_seconds=promise.promised * seconds
                + (known.promised_seconds if known else 0),
                used_seconds=promise.used * seconds + (known.used_seconds if known else 0),
            )
    return [summed[at] for at in sorted(summed)]


def hours_between(start: datetime, end: datetime) -> Iterator[tuple[datetime, int]]:
    """Yield every hour that a span touches with the seconds of the span in it."""
    while start < end:
        at = start.astimezone(UTC).replace(minute=0, second=0, microsecond=0)
        stop = min(end, at + HOUR)
        yield at, (stop - start) // SECOND
        start = stop


def whole_second(moment: datetime) -> datetime:
    """Return a time without its part of a second."""
    return moment.replace(microsecond=0)


def _spans(
    before: Promise | None, after: Promise | None, last: datetime, now: datetime
) -> Iterator[tuple[Promise, datetime, datetime]]:
    if after is None:
        if before is not None and before.until is not None and before.until <= now:
            yield before, last, whole_second(before.until)
        return
    end = min(now, whole_second(after.until)) if after.until is not None else now
    since = whole_second(after.since) if after.since is not None else last
    changed = min(max(since, last), now)
    if before is None:
        yield after, changed, end
    elif before.promised == after.promised:
        yield before, last, end
    else:
        over = whole_second(before.until) if before.until is not None else changed
        yield before, last, min(over, changed)
        yield after, changed, end
