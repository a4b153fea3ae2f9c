from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from placement.domain.capacity import InventoryAmounts, is_valid_ratio


@pytest.mark.parametrize(
    ("total", "reserved", "ratio", "low", "high", "step", "used", "amount", "has_room"),
    [
        pytest.param(24, 0, 16.0, 1, 24, 1, 0, 24, True, id="whole unit"),
        pytest.param(24, 0, 16.0, 1, 24, 1, 383, 1, True, id="capacity 384"),
        pytest.param(24, 0, 16.0, 1, 24, 1, 384, 1, False, id="full"),
        pytest.param(24, 0, 16.0, 1, 24, 1, 0, 25, False, id="max_unit"),
        pytest.param(2048, 0, 1.0, 10, 1000, 10, 0, 15, False, id="step"),
        pytest.param(2048, 0, 1.0, 10, 1000, 10, 1020, 1000, True, id="2020 of 2048"),
        pytest.param(2048, 0, 1.0, 10, 1000, 10, 1020, 1030, False, id="above max_unit"),
        pytest.param(2000, 100, 1.0, 1, 2000, 1, 0, 1900, True, id="reserved"),
        pytest.param(3, 0, 1.5, 1, 3, 1, 4, 1, False, id="5 above 4.5"),
        pytest.param(4, 4, 1.0, 1, 4, 1, 0, 1, False, id="all reserved"),
    ],
)
def test_room(  # noqa: PLR0917 - the columns of the table
    total: int,
    reserved: int,
    ratio: float,
    low: int,
    high: int,
    step: int,
    used: int,
    amount: int,
    has_room: bool,
) -> None:
    amounts = InventoryAmounts(
        total=total,
        reserved=reserved,
        allocation_ratio=ratio,
        min_unit=low,
        max_unit=high,
        step_size=step,
    )
    assert amounts.has_room(amount, used=used) is has_room


@given(total=st.integers(1, 10**6), reserved=st.integers(0, 10**6), ratio=st.floats(0, 100))
def test_an_integer_fits_the_real_capacity_iff_it_fits_the_truncated_one(
    total: int, reserved: int, ratio: float
) -> None:
    amounts = InventoryAmounts(total=total, reserved=reserved, allocation_ratio=ratio)
    for amount in (amounts.capacity - 1, amounts.capacity, amounts.capacity + 1):
        if amount >= 1:
            assert (amount <= amounts.capacity_real) == (amount <= amounts.capacity)


@pytest.mark.parametrize(
    ("ratio", "is_valid"), [(1.0, True), (0.0, True), (float("nan"), False), (float("inf"), False)]
)
def test_ratios_one_cannot_calculate_with(ratio: float, is_valid: bool) -> None:
    assert is_valid_ratio(ratio) is is_valid
