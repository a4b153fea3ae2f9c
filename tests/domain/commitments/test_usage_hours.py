"""What a commitment promised and used between two looks, against a count second by second."""

from __future__ import annotations

from collections import defaultdict
from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from commitments.domain.usage_hours import HourShare, Promise, hour_shares

START = datetime(2026, 11, 1, 5, 59, 0, tzinfo=UTC)
SECOND = timedelta(seconds=1)
MOST_SECONDS = 300

offsets = st.none() | st.integers(-50, MOST_SECONDS + 50)


@st.composite
def promises(draw: st.DrawFn) -> Promise:
    promised = draw(st.integers(0, 9))
    since, until = draw(offsets), draw(offsets)
    return Promise(
        promised=promised,
        used=draw(st.integers(0, promised)),
        since=None if since is None else START + since * SECOND,
        until=None if until is None else START + until * SECOND,
    )


def holder(
    before: Promise | None, after: Promise | None, moment: datetime, now: datetime
) -> Promise | None:
    """Return what is taken to be in force at a moment; the slow, obvious version."""
    if after is None:
        is_known = before is not None and before.until is not None and before.until <= now
        held = before if is_known else None
    elif before is not None and before.promised == after.promised:
        return before if after.until is None or moment < after.until else None
    elif after.since is None or moment >= after.since:
        held = after
    else:
        held = before
    return held if held is not None and (held.until is None or moment < held.until) else None


def by_seconds(
    before: Promise | None, after: Promise | None, *, last: datetime, now: datetime
) -> list[HourShare]:
    sums: dict[datetime, list[int]] = defaultdict(lambda: [0, 0, 0])
    moment = last
    while moment < now:
        held = holder(before, after, moment, now)
        if held is not None:
            hour = sums[moment.replace(minute=0, second=0)]
            for place, amount in enumerate((1, held.promised, held.used)):
                hour[place] += amount
        moment += SECOND
    return [
        HourShare(
            at=at, seconds=sums[at][0], promised_seconds=sums[at][1], used_seconds=sums[at][2]
        )
        for at in sorted(sums)
    ]


@given(
    before=st.none() | promises(),
    after=st.none() | promises(),
    seconds=st.integers(0, MOST_SECONDS),
)
def test_shares_are_what_a_count_of_seconds_finds(
    before: Promise | None, after: Promise | None, seconds: int
) -> None:
    times = {"last": START, "now": START + seconds * SECOND}
    assert hour_shares(before, after, **times) == by_seconds(before, after, **times)


@given(
    states=st.lists(st.none() | promises(), min_size=2, max_size=6),
    steps=st.lists(st.integers(0, 5000), min_size=5, max_size=5),
)
def test_used_is_never_more_than_promised_and_no_hour_is_longer_than_one(
    states: list[Promise | None], steps: list[int]
) -> None:
    hours: dict[datetime, list[int]] = defaultdict(lambda: [0, 0, 0])
    last = START
    for before, after, step in zip(states, states[1:], steps, strict=False):
        now = last + step * SECOND
        for share in hour_shares(before, after, last=last, now=now):
            assert last.replace(minute=0, second=0) <= share.at < now
            for place, amount in enumerate(
                (share.seconds, share.promised_seconds, share.used_seconds)
            ):
                hours[share.at][place] += amount
        last = now
    for seconds, promised, used in hours.values():
        assert 0 < seconds <= 3600
        assert 0 <= used <= promised
