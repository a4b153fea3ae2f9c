"""When room is used up: bounds of the trend, known changes, and the honest "not known"."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capacity.figures.runway import HORIZON, LEAST_DAYS, NotKnown, Runway, runway, used_up

NOW = datetime(2026, 5, 4, 12, tzinfo=UTC)
DAY = timedelta(days=1)
SERIES = st.lists(st.integers(0, 2**50), min_size=LEAST_DAYS, max_size=40)
CHANGES = st.lists(st.tuples(st.integers(1, 400), st.integers(-(2**40), 2**40)), max_size=6)


def daily(amounts: list[int]) -> list[tuple[datetime, int]]:
    last = len(amounts) - 1
    return [(NOW - (last - number) * DAY, amount) for number, amount in enumerate(amounts)]


def at_days(changes: list[tuple[int, int]]) -> list[tuple[datetime, int]]:
    return [(NOW + days * DAY, amount) for days, amount in changes]


def found(amounts: list[int], left: int, changes: list[tuple[int, int]] | None = None) -> Runway:
    answer = runway(daily(amounts), left=left, changes=at_days(changes or []), now=NOW)
    assert isinstance(answer, Runway)
    return answer


def whole_days(moment: datetime | None) -> int | None:
    return None if moment is None else round((moment - NOW) / DAY)


@pytest.mark.parametrize(
    ("changes", "days"),
    [
        pytest.param([], 10, id="steady growth"),
        pytest.param([(5, 100)], 20, id="what ends before gives more time"),
        pytest.param([(15, 100)], 10, id="what ends after does not"),
        pytest.param([(5, -40)], 6, id="what starts before takes time"),
        pytest.param([(3, -70)], 3, id="what starts and takes all ends it"),
        pytest.param([(-3, -70)], 10, id="the past is in what is left"),
    ],
)
def test_known_changes_move_the_end(changes: list[tuple[int, int]], days: int) -> None:
    answer = found([10 * day for day in range(20)], 100, changes)
    assert answer.growth_per_day == 10
    assert [whole_days(m) for m in (answer.earliest, answer.likely, answer.latest)] == [days] * 3


@given(st.lists(st.integers(0, 100), max_size=LEAST_DAYS - 1))
def test_too_little_history_is_not_known(amounts: list[int]) -> None:
    answer = runway(daily(amounts), left=5, changes=[], now=NOW)
    assert answer == NotKnown(days_known=len(amounts))


def test_many_hours_of_few_days_are_few_days() -> None:
    used = [(NOW - hours * timedelta(hours=1), 1) for hours in range(72, 0, -1)]
    answer = runway(used, left=5, changes=[], now=NOW)
    assert isinstance(answer, NotKnown)
    assert answer.days_known == 4


def test_no_growth_has_no_end_and_one_jump_does_not_bend_the_trend() -> None:
    assert found([7] * 20, 100).likely is None
    assert found([7] * 19 + [10**9], 100).likely is None
    assert found([100 - day for day in range(20)], 100).latest is None


@given(SERIES, st.integers(0, 2**50), CHANGES)
def test_the_band_holds_the_likely_end(
    amounts: list[int], left: int, changes: list[tuple[int, int]]
) -> None:
    answer = found(amounts, left, changes)
    far = NOW + 2 * HORIZON
    early, likely, late = (
        moment or far for moment in (answer.earliest, answer.likely, answer.latest)
    )
    assert NOW <= early <= likely <= late
    assert late == far or late <= NOW + HORIZON


@given(SERIES, st.integers(0, 2**50), st.integers(0, 2**50))
def test_more_room_never_ends_sooner(amounts: list[int], left: int, more: int) -> None:
    far = NOW + 2 * HORIZON
    assert (found(amounts, left).likely or far) <= (found(amounts, left + more).likely or far)


@given(st.integers(-50, 50), st.integers(1, 2000), CHANGES)
def test_the_end_is_that_of_a_walk_day_by_day(
    growth: int, left: int, changes: list[tuple[int, int]]
) -> None:
    small = sorted((days, amount % 1001 - 500) for days, amount in changes if days <= 365)
    rest, walked = left, None
    for day in range(1, 366):
        rest -= growth
        if rest <= 0:
            walked = day
            break
        rest += sum(amount for days, amount in small if days == day)
        if rest <= 0:
            walked = day
            break
    end = used_up(growth, left=left, changes=at_days(small), now=NOW)
    if walked is None:
        assert end is None
    else:
        assert end is not None
        assert walked - 1 < (end - NOW) / DAY <= walked
