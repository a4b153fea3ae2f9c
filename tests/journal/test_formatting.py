from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from core import text as formatting
from scheduling.resources import GIB, MIB

NOW = datetime(2026, 11, 21, 11, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("memory_bytes", "text"),
    [
        (0, "0 GiB"),
        (64 * GIB, "64 GiB"),
        (1536 * MIB, "1,536 MiB"),
        (2048 * GIB, "2 TiB"),
        (1000, "1,000 bytes"),
        (-GIB, "-1 GiB"),
        (None, "—"),
    ],
)
def test_memory_is_written_exactly(memory_bytes: int | None, text: str) -> None:
    assert formatting.memory_text(memory_bytes) == text


@pytest.mark.parametrize(
    ("memory_bytes", "text"),
    [
        (0, "0 GiB"),
        (2 * GIB, "2 GiB"),
        (515_843 * MIB, "503.7 GiB"),
        (4096 * GIB, "4,096 GiB"),
        (20 * 1024 * GIB, "20 TiB"),
        (-3 * GIB - MIB, "-3,073 MiB"),
        (None, "—"),
    ],
)
def test_memory_for_a_glance_is_never_rounded_up(memory_bytes: int | None, text: str) -> None:
    assert formatting.memory_short(memory_bytes) == text


@pytest.mark.parametrize(
    ("memory_bytes", "text"),
    [
        (None, "—"),
        (0, "0 GiB"),
        (1, "0 GiB"),
        (-1, "0 GiB"),
        (1 << 29, "0.5 GiB"),
        (10 << 30, "10 GiB"),
        ((100 << 30) + 107374183, "100.1 GiB"),
        ((1 << 30) - 1, "0.99 GiB"),
        (-(1536 << 20), "-1.5 GiB"),
        (-(2048 << 30), "-2,048 GiB"),
        (12032 << 30, "12,032 GiB"),
    ],
)
def test_memory_of_a_column_is_in_gib(memory_bytes: int | None, text: str) -> None:
    assert formatting.gib_text(memory_bytes) == text


@pytest.mark.parametrize(
    ("duration", "text"),
    [
        (timedelta(seconds=59), "59s"),
        (timedelta(seconds=60), "1m 0s"),
        (timedelta(minutes=59, seconds=59), "59m 59s"),
        (timedelta(minutes=60), "1h 0m"),
        (timedelta(hours=24), "1d 0h"),
    ],
    ids=["59 s", "60 s", "59 m 59 s", "60 m", "24 h"],
)
def test_a_duration_has_two_units(duration: timedelta, text: str) -> None:
    assert formatting.duration_text(duration) == text


@pytest.mark.parametrize(
    ("offset", "text"),
    [
        (timedelta(hours=-3), "2026-11-21 08:00 UTC (3 h ago)"),
        (timedelta(days=5), "2026-11-26 11:00 UTC (in 5 d)"),
        (timedelta(seconds=-5), "2026-11-21 10:59 UTC (5 s ago)"),
    ],
)
def test_a_time_is_utc_with_a_hint(offset: timedelta, text: str) -> None:
    assert formatting.time_text(NOW + offset, NOW) == text


def test_a_percentage_is_rounded_down_and_needs_a_whole() -> None:
    assert formatting.percent_text(999, 1000) == "99 %"
    assert formatting.percent_text(1, 0) == "—"
