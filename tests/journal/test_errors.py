"""Texts of errors."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hosts.region.node import RegionFileError
from journal.errors import Busy, HeadroomError, InvalidInput, one_line
from placement.domain.errors import BadRequest


@given(st.text())
def test_every_text_is_one_printable_line_with_its_words(text: str) -> None:
    line = one_line(text)
    assert line.isprintable()
    visible = "".join(char for char in text if char.isprintable()).replace(" ", "")
    assert line.replace(" ", "") == visible


@given(st.text(st.characters(categories=["L", "N", "P", "Zs"], include_characters=" ")))
def test_a_printable_text_stays_as_it_is(text: str) -> None:
    if text.isprintable():
        assert one_line(text) == text


@pytest.mark.parametrize(
    "error",
    [
        HeadroomError("commitment a\nb: no"),
        Busy("commitment a\nb: no", retry_after_seconds=1),
        InvalidInput("commitment a\r\nb: no", field="x"),
        BadRequest("commitment a\u2028b: no"),
        RegionFileError(file_name="commitment a\nb", path="", problem="no"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_errors_of_every_kind_have_one_line(error: HeadroomError) -> None:
    assert error.message == str(error) == "commitment a b: no"
