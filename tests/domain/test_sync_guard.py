from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commitments.domain.sync_guard import (
    MissingPlan,
    StoredRow,
    SyncRules,
    plan_missing,
    shrank_too_far,
    vanished_zones,
)

NOW = datetime(2026, 11, 21, tzinfo=UTC)
RULES = SyncRules(
    stale_threshold=3,
    stale_grace=timedelta(hours=6),
    unlisted_grace=timedelta(minutes=10),
    max_drop_ratio=0.2,
    max_drop_count=5,
    expired_retention=timedelta(days=1),
)


@pytest.mark.parametrize(
    ("before", "known", "is_too_far"),
    [
        (100, 100, False),
        (100, 80, False),  # exactly the share
        (100, 79, True),
        (100, 0, True),
        (4, 0, False),  # fewer than five
        (5, 0, True),
        (20, 16, False),
        (20, 15, True),
        (1000, 900, False),
        (0, 0, False),
        (10, 50, False),
    ],
)
def test_a_set_that_lost_many_and_a_large_share_is_not_believed(
    before: int, known: int, is_too_far: bool
) -> None:
    assert shrank_too_far(known=known, before=before, rules=RULES) is is_too_far


@pytest.mark.parametrize(
    ("before", "known", "vanished"),
    [
        pytest.param({"a": 90, "b": 3}, {"a": 90}, ("b",), id="a small zone"),
        pytest.param({"a": 90, "b": 3}, {"a": 90, "b": 0}, ("b",), id="counted as nothing"),
        pytest.param({"c": 2, "b": 3, "a": 1}, {"a": 1}, ("b", "c"), id="two of them, in order"),
        pytest.param({"a": 90, "b": 3}, {"a": 90, "b": 1}, (), id="one is left"),
        pytest.param({"a": 90, "b": 1}, {"a": 90}, (), id="there was one"),
        pytest.param({"a": 4}, {}, (), id="nothing anywhere: the whole decides"),
        pytest.param({"a": 4, "b": 2}, {}, (), id="nothing anywhere, two zones"),
        pytest.param({}, {"a": 4}, (), id="no good run before"),
    ],
)
def test_a_zone_of_which_nothing_is_listed_is_told_from_an_empty_list(
    before: dict[str, int], known: dict[str, int], vanished: tuple[str, ...]
) -> None:
    assert vanished_zones(before=before, known=known) == vanished


def row(*, missed: int = 0, hours: float | None = None, is_untouched: bool = True) -> StoredRow:
    return StoredRow(
        pk=1,
        commitment_uuid="a",
        missed_syncs=missed,
        missing_since=None if hours is None else NOW - timedelta(hours=hours),
        is_untouched=is_untouched,
    )


def plan(stored: StoredRow, *known: str) -> MissingPlan:
    return plan_missing([stored], set(known), rules=RULES, now=NOW)


NOTHING = MissingPlan(found_again=(), missed=(), ended=())
COUNTED = MissingPlan(found_again=(), missed=(1,), ended=())


@pytest.mark.parametrize(
    ("stored", "known", "expected"),
    [
        pytest.param(row(), ("a",), NOTHING, id="listed"),
        pytest.param(row(), (), COUNTED, id="missing for the first time"),
        pytest.param(row(missed=1, hours=7), (), COUNTED, id="long, and twice only"),
        pytest.param(row(missed=2, hours=5.9), (), COUNTED, id="three times, and not long"),
        pytest.param(
            row(missed=2, hours=6),
            (),
            MissingPlan(found_again=(), missed=(1,), ended=(1,)),
            id="three times and long",
        ),
        pytest.param(
            row(missed=9, hours=60),
            ("a",),
            MissingPlan(found_again=(1,), missed=(), ended=()),
            id="reappears",
        ),
        pytest.param(row(missed=9, hours=60, is_untouched=False), (), NOTHING, id="changed since"),
    ],
)
def test_a_missing_commitment_ends_after_three_runs_and_six_hours(
    stored: StoredRow, known: tuple[str, ...], expected: MissingPlan
) -> None:
    assert plan(stored, *known) == expected


@given(
    listings=st.lists(st.booleans(), min_size=1, max_size=30),
    hours=st.floats(0.1, 10),
)
def test_it_ends_at_the_first_run_that_completes_a_long_enough_row_of_misses(
    listings: list[bool], hours: float
) -> None:
    stored, run_of_misses, first_miss = row(), 0, NOW
    for number, is_listed in enumerate(listings):
        now = NOW + timedelta(hours=number * hours)
        known = {"a"} if is_listed else set()
        made = plan_missing([stored], known, rules=RULES, now=now)
        if is_listed:
            run_of_misses = 0
        else:
            first_miss = first_miss if run_of_misses else now
            run_of_misses += 1
        should_end = run_of_misses >= 3 and now - first_miss >= timedelta(hours=6)
        assert bool(made.ended) is should_end
        assert bool(made.missed) is not is_listed
        if should_end:
            return
        stored = StoredRow(
            pk=1,
            commitment_uuid="a",
            missed_syncs=run_of_misses,
            missing_since=first_miss if run_of_misses else None,
            is_untouched=True,
        )
