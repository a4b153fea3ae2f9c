"""Attempts and chunks that every app shares."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.chunks import in_chunks
from core.jobs import tried


class SpoiledError(Exception):
    """What is worth another attempt."""


def failing(times: int, error: type[Exception] = SpoiledError) -> Callable[[], int]:
    """Return work that fails some times, and tells then how often it was begun."""
    begun = 0

    def work() -> int:
        nonlocal begun
        begun += 1
        if begun <= times:
            raise error(begun)
        return begun

    return work


def again(work: Callable[[], int], given_up: Exception | None = None) -> int:
    return tried(
        work,
        again_after=lambda error: isinstance(error, SpoiledError),
        event="work_spoiled",
        given_up=given_up,
    )


@pytest.mark.parametrize("times", [0, 1, 2])
def test_work_is_begun_anew_until_it_succeeds(times: int) -> None:
    assert again(failing(times)) == times + 1


def test_the_third_failure_is_the_last() -> None:
    with pytest.raises(SpoiledError, match="3"):
        again(failing(3))
    with pytest.raises(LookupError) as raised:
        again(failing(3), given_up=LookupError())
    assert isinstance(raised.value.__cause__, SpoiledError)


def test_other_errors_go_on_at_once() -> None:
    with pytest.raises(ValueError, match="1"):
        again(failing(3, ValueError), given_up=LookupError())


@given(st.lists(st.integers()), st.integers(1, 5))
def test_chunks_are_all_rows_in_order_and_only_the_last_is_short(
    rows: list[int], size: int
) -> None:
    chunks = list(in_chunks(rows, size))
    assert [row for chunk in chunks for row in chunk] == rows
    assert all(len(chunk) == size for chunk in chunks[:-1])
    assert all(0 < len(chunk) <= size for chunk in chunks)
