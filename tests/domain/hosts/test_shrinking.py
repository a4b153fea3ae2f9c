from __future__ import annotations

import pytest

from hosts.domain.shrinking import has_shrunk_too_much, has_vanished, length_from_now


@pytest.mark.parametrize(
    ("before", "now", "is_too_much"),
    [
        pytest.param(None, 0, False, id="never believed"),
        pytest.param(100, 80, False, id="a fifth"),
        pytest.param(100, 79, True, id="more than a fifth"),
        pytest.param(8, 4, False, id="half, but few"),
        pytest.param(10, 5, True, id="half"),
        pytest.param(100, 0, True, id="everything"),
        pytest.param(10, 20, False, id="it grew"),
    ],
)
def test_a_list_may_lose_few_rows_or_a_small_share(
    before: int | None, now: int, *, is_too_much: bool
) -> None:
    assert has_shrunk_too_much(before, now, max_ratio=0.2, max_rows=5) is is_too_much


@pytest.mark.parametrize(
    ("before", "now", "vanished"),
    [
        pytest.param(None, 0, False, id="never believed"),
        pytest.param(0, 0, False, id="always empty"),
        pytest.param(1, 0, False, id="the last one went"),
        pytest.param(2, 0, True, id="both at once"),
        pytest.param(3, 1, False, id="one is left"),
        pytest.param(1000, 0, True, id="a large one"),
        pytest.param(0, 5, False, id="it grew"),
    ],
)
def test_more_than_one_row_does_not_vanish_at_once(
    before: int | None, now: int, *, vanished: bool
) -> None:
    assert has_vanished(before, now) is vanished


@pytest.mark.parametrize(
    ("counted", "before", "now", "expected"),
    [
        pytest.param(10, 10, 10, 10, id="nothing was told meanwhile"),
        pytest.param(10, 10, 4, 4, id="six were told to be gone"),
        pytest.param(12, 10, 4, 6, id="and two came"),
        pytest.param(3, 10, 4, 0, id="most of them were gone when it was counted"),
        pytest.param(12, 10, 11, 12, id="another run counted it"),
        pytest.param(12, None, None, 12, id="it was never counted"),
        pytest.param(12, None, 4, 12, id="first by another run"),
    ],
)
def test_what_was_told_while_it_was_counted(
    counted: int, before: int | None, now: int | None, expected: int
) -> None:
    assert length_from_now(counted, before=before, now=now) == expected
