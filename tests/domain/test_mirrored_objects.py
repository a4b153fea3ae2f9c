from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.domain.kinds import Naming
from bridge.domain.objects import MOVING, digest
from bridge.domain.quantities import memory_quantity, timestamp
from bridge.domain.writing import LONGEST_BACKOFF_SECONDS, backoff_seconds

UNITS = {
    "": 1,
    "Ki": 1 << 10,
    "Mi": 1 << 20,
    "Gi": 1 << 30,
    "Ti": 1 << 40,
    "Pi": 1 << 50,
    "Ei": 1 << 60,
}


@pytest.mark.parametrize(
    ("memory_bytes", "text"),
    [(4 << 30, "4Gi"), (3 << 29, "1536Mi"), (1025, "1025"), (0, "0"), (-(1 << 30), "-1Gi")],
)
def test_memory_has_the_largest_suffix_that_divides_it(memory_bytes: int, text: str) -> None:
    assert memory_quantity(memory_bytes) == text


@given(st.integers(min_value=-(1 << 63), max_value=1 << 63))
def test_no_byte_is_lost_in_a_quantity(memory_bytes: int) -> None:
    text = memory_quantity(memory_bytes)
    number = text.rstrip("KMGTPEi")
    assert int(number) * UNITS[text[len(number) :]] == memory_bytes
    larger = [unit for unit in UNITS.values() if memory_bytes and memory_bytes % unit == 0]
    assert UNITS[text[len(number) :]] == max(larger, default=1)


def test_times_are_in_utc() -> None:
    there = timezone(timedelta(hours=2))
    assert timestamp(datetime(2026, 1, 1, 1, 30, tzinfo=there)) == "2025-12-31T23:30:00Z"
    assert timestamp(datetime(2026, 1, 1, tzinfo=UTC)) == "2026-01-01T00:00:00Z"
    assert timestamp(None) is None


@pytest.mark.parametrize("key", sorted(MOVING))
def test_times_that_move_on_their_own_are_no_change(key: str) -> None:
    still = {"a": [{"b": 1}]}
    assert digest({**still, key: "2026-01-01T00:00:00Z"}) == digest(still)
    assert digest({"a": [{"b": 2}], key: "x"}) != digest(still)


def test_names_of_two_regions_never_collide() -> None:
    names = {Naming(region=region).object_name("commitment-ABC") for region in ("", "eu", "us")}
    assert names == {"commitment-abc", "commitment-abc.eu", "commitment-abc.us"}


@pytest.mark.parametrize("plain", ["", "a b", "a_b", "x" * 254])
def test_what_kubernetes_takes_as_no_name_is_refused(plain: str) -> None:
    with pytest.raises(ValueError, match="no name"):
        Naming().object_name(plain)


def test_a_refused_object_waits_longer_each_time_up_to_a_limit() -> None:
    waits = [backoff_seconds(failures) for failures in range(1, 40)]
    assert waits == sorted(waits)
    assert (waits[0], waits[-1]) == (2, LONGEST_BACKOFF_SECONDS)
