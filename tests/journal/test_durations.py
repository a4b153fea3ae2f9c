"""Durations as Go writes them (spec commitments, 21)."""

from __future__ import annotations

from decimal import Decimal

import pytest

from journal.durations import duration_seconds


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("5m", 300),
        ("90s", 90),
        ("500ms", Decimal("0.5")),
        ("1h30m", 5400),
        ("1.5h", 5400),
        (".5s", Decimal("0.5")),
        ("2us", Decimal("0.000002")),
        ("2µs", Decimal("0.000002")),
        ("1s1ms1ns", Decimal("1.001000001")),
        ("0s", 0),
    ],
)
def test_seconds_of_a_duration(text: str, seconds: Decimal | int) -> None:
    assert duration_seconds(text) == seconds


@pytest.mark.parametrize(
    "text", ["", "5", "-5m", "5 m", "5M", "5d", "m", "1h30", "5m!", "\u0665m", "."]
)
def test_anything_else_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match="not a duration"):
        duration_seconds(text)
