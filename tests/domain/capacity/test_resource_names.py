from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capacity.resource_names import fnv1a_32, group_capacity_resource_name

DNS_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


@pytest.mark.parametrize(
    ("content", "digest"),
    [(b"", 0x811C9DC5), (b"a", 0xE40C292C), (b"foobar", 0xBF9CF968)],
)
def test_hash_is_the_published_one(content: bytes, digest: int) -> None:
    assert fnv1a_32(content) == digest


@pytest.mark.parametrize(
    ("group", "zone", "prefix"),
    [
        ("hana-v2", "qa-de-1a", "hana-v2-qa-de-1a-"),
        ("My_Group", "eu.west.1", "my-group-eu-west-1-"),
        ("G", "AZ_1", "g-az-1-"),
    ],
)
def test_name_begins_with_what_a_person_reads(group: str, zone: str, prefix: str) -> None:
    name = group_capacity_resource_name(group, zone)
    assert re.fullmatch(re.escape(prefix) + "[0-9a-f]{6}", name)


def test_last_digits_are_the_low_bits_of_the_hash_of_the_raw_names() -> None:
    name = group_capacity_resource_name("My_Group", "eu.west.1")
    assert int(name[-6:], 16) == fnv1a_32(b"My_Group\x00eu.west.1") % (1 << 24)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (("hana.v2", "az"), ("hana-v2", "az")),
        (("a-b", "c"), ("a", "b-c")),
        (("x" * 80, "az-a"), ("x" * 80, "az-b")),
    ],
    ids=["replaced alike", "divided otherwise", "cut alike"],
)
def test_different_rows_have_different_names(one: tuple[str, str], other: tuple[str, str]) -> None:
    assert group_capacity_resource_name(*one) != group_capacity_resource_name(*other)


@given(group=st.text(max_size=100), zone=st.text(max_size=100))
def test_name_is_always_a_dns_label(group: str, zone: str) -> None:
    assert DNS_LABEL.fullmatch(group_capacity_resource_name(group, zone))
