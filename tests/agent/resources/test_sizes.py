"""Sizes and rates as people write them (spec hosts, A.4)."""

from __future__ import annotations

import pytest
from headroom_host_agent.resources.sizes import (
    SizeError,
    binary_size,
    human_size,
    parse_bandwidth,
    parse_bytes,
    parse_disk_io,
)
from hypothesis import given
from hypothesis import strategies as st

ERROR = None
GIB = 1024**3
# text, lenient bandwidth, lenient disk I/O, is it accepted strictly as (bandwidth, disk I/O)
TABLE: list[tuple[str, int | None, int | None, bool, bool]] = [
    ("1Gbps", 125_000_000, 1_073_741_824, True, False),
    ("10Gbps", 1_250_000_000, 10_737_418_240, True, False),
    ("  10Gbps ", 1_250_000_000, 10_737_418_240, True, False),
    ("25gbps", 3_125_000_000, 26_843_545_600, True, False),
    ("100Mbps", 12_500_000, 104_857_600, True, False),
    ("1000kbps", 125_000, 1_024_000, True, False),
    ("1 Gbps", 125_000_000, 1_073_741_824, True, False),
    ("10 g bps", 1_250_000_000, ERROR, False, False),
    ("8bps", 1, 8, True, False),
    ("7bps", 0, 7, False, False),
    ("0Gbps", 0, 0, True, False),
    ("-8bps", -1, ERROR, False, False),
    ("+1Gbps", 125_000_000, ERROR, False, False),
    ("125MB", 131_072_000, 131_072_000, True, True),
    ("125MB/s", 131_072_000, 131_072_000, True, True),
    ("1GB", GIB, GIB, True, True),
    ("1GB/s", GIB, GIB, True, True),
    ("1GiB/s", GIB, GIB, True, True),
    ("500 MB/s", 524_288_000, 524_288_000, True, True),
    ("1000", 1000, 1000, True, True),
    ("0", 0, 0, True, True),
    ("", 0, 0, False, False),
    ("/s", 0, 0, False, False),
    ("125MBps", 15_625_000, 131_072_000, False, False),
    ("1GBps", 125_000_000, GIB, False, False),
    ("10Gb/s", 10 * GIB, 10 * GIB, False, False),
    ("10Gb", 10 * GIB, 10 * GIB, False, False),
    ("10Gps", 10 * GIB, 10 * GIB, False, False),
    ("10Gbps/s", 10 * GIB, 10 * GIB, False, False),
    ("1.5Gbps", ERROR, ERROR, False, False),
    ("1Tbps", ERROR, 1_099_511_627_776, False, False),
    ("1_000Mbps", ERROR, ERROR, False, False),
    ("bps", ERROR, ERROR, False, False),
    ("gbps", ERROR, ERROR, False, False),
    ("1.5GB", ERROR, ERROR, False, False),
    ("-1GB", ERROR, ERROR, False, False),
    ("invalid", ERROR, ERROR, False, False),
    ("1XB", ERROR, ERROR, False, False),
    ("MB/s", ERROR, ERROR, False, False),
    ("18446744073709551616", ERROR, ERROR, False, False),
    ("16EB", ERROR, ERROR, False, False),
    ("9223372036854775808", 2**63, 2**63, False, False),
]


def outcome(parse: object, text: str, *, strict: bool) -> int | None:
    try:
        return parse(text, strict=strict)  # type: ignore[operator,no-any-return]  # one of two
    except SizeError:
        return ERROR


@pytest.mark.parametrize("row", TABLE, ids=[repr(row[0]) for row in TABLE])
def test_a_text_is_read_leniently_and_strictly(
    row: tuple[str, int | None, int | None, bool, bool],
) -> None:
    text, bandwidth, disk_io, is_bandwidth, is_disk_io = row

    assert outcome(parse_bandwidth, text, strict=False) == bandwidth
    assert outcome(parse_disk_io, text, strict=False) == disk_io
    assert outcome(parse_bandwidth, text, strict=True) == (bandwidth if is_bandwidth else ERROR)
    assert outcome(parse_disk_io, text, strict=True) == (disk_io if is_disk_io else ERROR)


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("1 kilobyte", 1024),
        ("3 megabytes", 3 * 1024**2),
        ("2 giga", 2 * GIB),
        ("1tib", 1024**4),
        ("1PB", 1024**5),
        ("1exa", 1024**6),
        ("12 byte", 12),
        ("12b", 12),
    ],
)
def test_every_unit_of_bytes_has_its_words(text: str, size_bytes: int) -> None:
    assert parse_bytes(text) == size_bytes


@pytest.mark.parametrize(
    "text", ["12b", "1gb", "1gib", "10G\u212a", "", "+1", "9223372036854775808"]
)
def test_a_configured_size_is_refused_when_people_misread_it(text: str) -> None:
    with pytest.raises(SizeError):
        parse_bytes(text, strict=True)


def test_an_error_names_field_text_rule_and_an_example() -> None:
    with pytest.raises(SizeError) as caught:
        parse_bandwidth("125MBps", strict=True, field="capacity.network")

    error = caught.value
    assert (error.field, error.text, error.example) == ("capacity.network", "125MBps", "10Gbps")
    assert "capital B" in error.rule
    assert parse_bandwidth(error.example, strict=True) > 0
    for part in (error.field, error.text, error.rule, error.example):
        assert part in str(error)


@pytest.mark.parametrize(("parse", "text"), [(parse_disk_io, "x"), (parse_bytes, "x")])
def test_the_example_of_an_error_is_accepted_strictly(parse: object, text: str) -> None:
    with pytest.raises(SizeError) as caught:
        parse(text, strict=True)  # type: ignore[operator]  # one of two

    assert outcome(parse, caught.value.example, strict=True)


@given(text=st.text(alphabet="0123456789 kKmMgGtTbBiIpPsS/+-._e", max_size=12))
def test_what_is_accepted_strictly_is_what_is_read_leniently(text: str) -> None:
    for parse in (parse_bandwidth, parse_disk_io, parse_bytes):
        strict = outcome(parse, text, strict=True)
        assert strict is ERROR or strict == outcome(parse, text, strict=False)
        assert strict is ERROR or 0 <= strict < 2**63


@given(text=st.text(max_size=20))
def test_no_text_fails_otherwise_than_with_a_size_error(text: str) -> None:
    for parse in (parse_bandwidth, parse_disk_io, parse_bytes):
        outcome(parse, text, strict=True)
        outcome(parse, text, strict=False)


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [
        (0, "0 B"),
        (1024, "1024 B"),
        (1025, "1.0 KB"),
        (1_048_576, "1024.0 KB"),
        (1_073_741_824, "1024.0 MB"),
        (8_589_934_592, "8.0 GB"),
        (125_000_000, "119.2 MB"),
        (1_250_000_000, "1.2 GB"),
    ],
)
def test_sizes_in_messages(size_bytes: int, text: str) -> None:
    assert human_size(size_bytes) == text


@pytest.mark.parametrize(
    ("size_bytes", "text"), [(1023, "1023 B"), (1024, "1.0 KiB"), (GIB, "1.0 GiB")]
)
def test_sizes_on_pages(size_bytes: int, text: str) -> None:
    assert binary_size(size_bytes) == text
