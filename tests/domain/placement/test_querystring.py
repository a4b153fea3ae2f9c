from __future__ import annotations

from contextlib import suppress
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from placement.domain.errors import BadRequest
from placement.domain.querystring import (
    AMOUNT_CAP,
    canonical_uuid,
    grouped_values,
    last_values,
    parse_in_tree,
    parse_member_of,
    parse_required,
    parse_resources,
    parsed_pairs,
)

A = "aaaaaaaa-aaaa-4aaa-8aaa-aaaaaaaaaaaa"
B = "bbbbbbbb-bbbb-4bbb-8bbb-bbbbbbbbbbbb"
LATEST = 39


@pytest.mark.parametrize(
    ("value", "amounts"),
    [
        ("VCPU:2", {"VCPU": 2}),
        ("VCPU:2,MEMORY_MB:1024", {"VCPU": 2, "MEMORY_MB": 1024}),
        ("VCPU:2,VCPU:3", {"VCPU": 3}),
        ("VCPU: 2 ", {"VCPU": 2}),
        ("VCPU:00000000000000000002", {"VCPU": 2}),
        ("VCPU:99999999999999999999", {"VCPU": AMOUNT_CAP}),
    ],
)
def test_resources(value: str, amounts: dict[str, int]) -> None:
    assert parse_resources(value) == amounts


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("", "Got: empty string."),
        ("  ", "Got: empty string."),
        ("VCPU", "Got: VCPU."),
        ("VCPU:2,", "Got: ."),
        ("VCPU:2:3", "Got: VCPU:2:3."),
        ("VCPU:fred", "Requested resource VCPU expected positive integer amount. Got: fred."),
        ("VCPU:+1", "expected positive integer amount. Got: +1."),
        ("VCPU:1_0", "expected positive integer amount. Got: 1_0."),
        ("VCPU:1.5", "expected positive integer amount. Got: 1.5."),
        ("VCPU:²", "expected positive integer amount."),
        ("VCPU:0", "Requested resource VCPU requires amount >= 1. Got: 0."),
        ("VCPU:-2", "Requested resource VCPU requires amount >= 1. Got: -2."),
    ],
)
def test_resources_that_are_refused(value: str, message: str) -> None:
    with pytest.raises(BadRequest) as caught:
        parse_resources(value)
    assert message in caught.value.message


@pytest.mark.parametrize(
    ("values", "minor", "required", "forbidden"),
    [
        pytest.param(["T1,T2"], 18, [{"T1"}, {"T2"}], set(), id="two"),
        pytest.param([" T1 , T2 "], 18, [{"T1"}, {"T2"}], set(), id="spaces"),
        pytest.param(["T1,!T2"], 22, [{"T1"}], {"T2"}, id="forbidden"),
        pytest.param(["!!!T2"], 22, [], {"T2"}, id="many marks"),
        pytest.param(["T1", "T2"], 38, [{"T2"}], set(), id="last wins"),
        pytest.param(["T1", "T2"], 39, [{"T1"}, {"T2"}], set(), id="all count"),
        pytest.param(["in:T1,T2"], 39, [{"T1", "T2"}], set(), id="any"),
        pytest.param(["in:T1,T2", "T3,!T4"], 39, [{"T1", "T2"}, {"T3"}], {"T4"}, id="mixed"),
    ],
)
def test_required(
    values: list[str], minor: int, required: list[set[str]], forbidden: set[str]
) -> None:
    parsed = parse_required(values, minor=minor)
    assert [set(names) for names in parsed.required] == required
    assert parsed.forbidden == forbidden


@pytest.mark.parametrize(
    ("value", "minor", "message"),
    [
        ("!T", 21, "value of the form: HW_CPU_X86_VMX,CUSTOM_MAGIC. Got: !T"),
        ("", 18, "value of the form: HW_CPU_X86_VMX,CUSTOM_MAGIC."),
        ("T1,", 22, "value of the form: HW_CPU_X86_VMX,!CUSTOM_MAGIC."),
        ("!", 22, "value of the form: HW_CPU_X86_VMX,!CUSTOM_MAGIC."),
        ("in:T1,T2", 38, "only supported since microversion 1.39."),
        ("in:T1,!T2", 39, "does not support forbidden traits"),
        ("in:T1,", 39, "Invalid query string parameters: "),
        ("in:", 39, "Invalid query string parameters: "),
    ],
)
def test_required_that_is_refused(value: str, minor: int, message: str) -> None:
    with pytest.raises(BadRequest) as caught:
        parse_required([value], minor=minor)
    assert message in caught.value.message


@pytest.mark.parametrize(
    ("values", "minor", "required", "forbidden"),
    [
        pytest.param([A], 3, [{A}], set(), id="one"),
        pytest.param([f"in:{A},{B}"], 3, [{A, B}], set(), id="any"),
        pytest.param([A, B], 24, [{A}, {B}], set(), id="repeated"),
        pytest.param([f"!{A}"], 32, [], {A}, id="forbidden"),
        pytest.param([f"!in:{A},{B}"], 32, [], {A, B}, id="none of"),
        pytest.param([A.upper().replace("-", "")], 3, [{A}], set(), id="other spelling"),
    ],
)
def test_member_of(
    values: list[str], minor: int, required: list[set[str]], forbidden: set[str]
) -> None:
    parsed = parse_member_of(values, minor=minor)
    assert [set(uuids) for uuids in parsed.required] == required
    assert parsed.forbidden == forbidden


@pytest.mark.parametrize(
    ("values", "minor", "message"),
    [
        ([A, B], 23, "Multiple member_of parameters are not supported"),
        ([f"{A},{B}"], LATEST, "must be prefixed with the 'in:' or '!in:' keyword"),
        ([f"!{A},{B}"], LATEST, "must be prefixed with the 'in:' or '!in:' keyword"),
        (["bogus"], LATEST, "Expected 'member_of' parameter to contain valid UUID(s)."),
        ([f"in:{A},!{B}"], LATEST, "Expected 'member_of' parameter to contain valid UUID(s)."),
        ([f"!{A}"], 31, "Forbidden member_of parameters are not supported"),
    ],
)
def test_member_of_that_is_refused(values: list[str], minor: int, message: str) -> None:
    with pytest.raises(BadRequest) as caught:
        parse_member_of(values, minor=minor)
    assert message in caught.value.message


def test_in_tree_takes_anything_like_a_uuid() -> None:
    assert parse_in_tree(A.upper()) == A
    with pytest.raises(BadRequest, match="Expected 'in_tree' parameter to be a format of uuid"):
        parse_in_tree("bogus")


@given(st.uuids())
def test_spellings_of_a_uuid(value: UUID) -> None:
    for spelling in (str(value), value.hex, value.hex.upper(), f"{{{value}}}", value.urn):
        assert canonical_uuid(spelling) == str(value)


@given(st.text(max_size=40))
def test_a_canonical_uuid_is_that_of_its_own_spelling(text: str) -> None:
    found = canonical_uuid(text)
    assert found is None or canonical_uuid(found) == found


@given(st.text(alphabet="VCPUin:!,0123456789-abcdef\u00e9 ", max_size=60), st.integers(0, LATEST))
def test_any_value_is_parsed_or_refused(text: str, minor: int) -> None:
    for parse in (
        lambda: parse_resources(text),
        lambda: parse_required([text], minor=minor),
        lambda: parse_member_of([text], minor=minor),
    ):
        with suppress(BadRequest):
            parse()


def test_values_of_a_query_keep_their_order() -> None:
    values = grouped_values(parsed_pairs("b=2&a=1&b=&c=%FF"))
    assert values == {"b": ["2", ""], "a": ["1"], "c": ["\ufffd"]}
    assert last_values(values) == {"b": "", "a": "1", "c": "\ufffd"}
    assert parsed_pairs("") == []
