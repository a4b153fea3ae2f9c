"""Durations of Limes (spec liquid, 15.2)."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commitments.domain.durations import UNITS, Term, parse_term


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        pytest.param("3year,5month", "3 years, 5 months", id="3year,5month"),
        pytest.param("   1 days  ,\t2 seconds\n,", "1 day, 2 seconds", id="white space"),
        pytest.param("1 year", "1 year", id="1 year"),
        pytest.param("0 years, 2 hours", "2 hours", id="a part of nothing"),
        pytest.param("2 seconds,1 day", "1 day, 2 seconds", id="any order"),
        pytest.param("1 day, 1 day", "2 days", id="parts of one unit add up"),
        pytest.param("90 minutes", "1 hour, 30 minutes", id="minutes make hours"),
        pytest.param("36 hours", "36 hours", id="hours make no days"),
        pytest.param("14 months", "14 months", id="months make no years"),
        pytest.param("007 days", "7 days", id="leading zeros"),
    ],
)
def test_terms_are_read_and_written(text: str, canonical: str) -> None:
    assert str(parse_term(text)) == canonical


@pytest.mark.parametrize(
    "text",
    [
        "",
        " , ,",
        "0 days",
        "0 seconds, 0 years",
        "3 blobs",
        "a year",
        "year",
        "-1 day",
        "1.5 years",
        "1 year 2 months",
        "1 Year",
        "1 dayss",
        "\u0661 day",
        "99999999999999999999999 days",
    ],
)
def test_everything_else_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match=r"is no number of|must"):
        parse_term(text)


@pytest.mark.parametrize(
    ("start", "term", "end"),
    [
        pytest.param("2026-03-01T12:00", "1 year", "2027-03-01T12:00", id="a year"),
        pytest.param("2024-02-29T00:00", "1 year", "2025-03-01T00:00", id="from a leap day"),
        pytest.param("2027-02-28T00:00", "1 year", "2028-02-28T00:00", id="into a leap year"),
        pytest.param("2026-01-31T00:00", "1 month", "2026-03-03T00:00", id="no 31 February"),
        pytest.param("2026-11-30T00:00", "3 months", "2027-03-02T00:00", id="over a year's end"),
        pytest.param("2026-12-31T23:00", "2 hours", "2027-01-01T01:00", id="hours"),
        pytest.param("2024-02-28T00:00", "1 day", "2024-02-29T00:00", id="a day"),
        pytest.param("2026-01-01T00:00", "1 year, 1 month, 1 day", "2027-02-02T00:00", id="all"),
        pytest.param("2026-12-01T00:00", "12 months", "2027-12-01T00:00", id="December again"),
    ],
)
def test_ends_follow_the_calendar(start: str, term: str, end: str) -> None:
    moment = datetime.fromisoformat(start).replace(tzinfo=UTC)
    assert parse_term(term).after(moment) == datetime.fromisoformat(end).replace(tzinfo=UTC)


@pytest.mark.parametrize("text", ["9000 years", "99999999 days", f"{2**62} seconds"])
def test_ends_beyond_the_calendar_are_an_overflow(text: str) -> None:
    with pytest.raises(OverflowError):
        parse_term(text).after(datetime(2026, 1, 1, tzinfo=UTC))


amounts = st.integers(0, 10**6)
terms = st.builds(Term, years=amounts, months=amounts, days=amounts, seconds=amounts)


@given(terms.filter(lambda term: str(term) != ""))
def test_what_is_written_is_read_again(term: Term) -> None:
    assert parse_term(str(term)) == term


@given(st.text(alphabet="0123456789 ,\tdaysyermonthiucn", max_size=40))
def test_any_text_is_a_term_or_an_error(text: str) -> None:
    """The oracle takes a text apart letter by letter."""
    parts = [part.strip() for part in text.split(",") if part.strip()]
    understood = []
    for part in parts:
        digits = part[: len(part) - len(part.lstrip("0123456789"))]
        unit = part[len(digits) :].strip()
        understood.append(bool(digits) and unit.removesuffix("s") in UNITS)
    try:
        parse_term(text)
    except ValueError:
        numbers = [int("".join(c for c in part if c.isdigit()) or 0) for part in parts]
        assert not all(understood) or not any(numbers) or max(numbers) > 2**50
    else:
        assert parts
        assert all(understood)
