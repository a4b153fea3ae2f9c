from __future__ import annotations

import pytest

from capacity.nova.step_impact import shift_origins, step_impact

STATS = {"0": 30.0, "1": 20.0, "2": 10.0, "3": 0.0}


@pytest.mark.parametrize(
    ("before", "after", "impact"),
    [
        ("0123", "3210", 200),
        ("0123", "0123", 0),
        ("0123", "0213", 20),
        ("0123", "3012", 120),
        ("0123", "01", 0),
        ("0123456", "0123465", 0),
    ],
    ids=[
        "reversed",
        "nothing moves",
        "1 and 2 swap",
        "the last comes first",
        "hosts are cut off",
        "seven hosts, swap at positions 5 and 6",
    ],
)
def test_the_impact_of_a_step_is_the_way_times_the_difference(
    before: str, after: str, impact: float
) -> None:
    assert step_impact(before, after, STATS) == impact


def test_the_origins_are_the_former_places_of_the_first_five() -> None:
    assert shift_origins("abcdefg", "gfedcba") == (6, 5, 4, 3, 2)
    assert shift_origins("abc", "cx") == (2,)
