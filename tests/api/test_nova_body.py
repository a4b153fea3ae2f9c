"""Which hosts and weights are read of a body, however it is written (spec scheduling, 2.3)."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capacity.api import host_lists
from capacity.api.nova_request import parse_nova_call
from core.api import InvalidCall
from tests.api.scheduler_client import NovaClient

NAMES = st.text(max_size=8) | st.sampled_from(["node1", "nöde", "\x00", '"', "\\", "💾"])
NUMBERS = (
    st.floats(allow_nan=False, allow_infinity=False)
    | st.integers(-(2**70), 2**70)
    | st.none()
    | st.sampled_from([-0.0, 0, 5e-324, 1.7976931348623157e308])
)
LISTED = st.dictionaries(NAMES, NUMBERS, max_size=6)


def body_of(weights: dict[str, Any], *, is_ascii: bool, indent: int | None, **more: Any) -> bytes:
    body = NovaClient().body()
    body["hosts"] = [{"x": [1], "host": name, "hypervisor_hostname": name} for name in weights]
    body["weights"] = weights
    return json.dumps({**body, **more}, ensure_ascii=is_ascii, indent=indent).encode()


@given(weights=LISTED, is_ascii=st.booleans(), indent=st.none() | st.just(1))
def test_hosts_and_weights_are_those_of_the_text(
    weights: dict[str, Any], is_ascii: bool, indent: int | None
) -> None:
    request = parse_nova_call(body_of(weights, is_ascii=is_ascii, indent=indent)).request
    assert request.hosts == tuple(weights)
    assert request.weights == {name: float(weight or 0) for name, weight in weights.items()}


@given(weights=LISTED, place=st.integers(0), byte=st.binary(min_size=1, max_size=1))
def test_damaged_text_is_refused_or_says_what_a_plain_decoder_reads(
    weights: dict[str, Any], place: int, byte: bytes
) -> None:
    body = body_of(weights, is_ascii=False, indent=None)
    place %= len(body)
    body = body[:place] + byte + body[place + 1 :]
    try:
        request = parse_nova_call(body).request
    except InvalidCall:
        return
    plain = json.loads(body)
    assert request.hosts == tuple(entry.get("host") or "" for entry in plain["hosts"] or ())
    read = {name: float(weight or 0) for name, weight in (plain["weights"] or {}).items()}
    assert request.weights == read


def test_number_that_no_float_holds_is_ignored_where_nobody_reads_it() -> None:
    body = body_of({"h1": 0.5}, is_ascii=True, indent=None, unread=1)
    body = body.replace(b'"unread": 1', b'"unread": 1e999')
    assert parse_nova_call(body).request.hosts == ("h1",)


def test_unread_text_that_is_not_utf8_is_refused() -> None:
    body = body_of({"h1": 0.5}, is_ascii=True, indent=None, unread="x").replace(b'"x"', b'"\xff"')
    with pytest.raises(InvalidCall, match="not valid JSON"):
        parse_nova_call(body)


@pytest.mark.parametrize("weight", [0.5, None], ids=["as Nova sends it", "read as a whole"])
def test_hosts_to_explain_come_with_the_call(weight: float | None) -> None:
    body = body_of({"h1": weight}, is_ascii=True, indent=None, explain_hosts=["h1", "h2"])
    listed = parse_nova_call(body).hosts_in_detail
    assert [item.text(max_length=9) for item in listed.items()] == ["h1", "h2"]
    without = parse_nova_call(body_of({"h1": weight}, is_ascii=True, indent=None))
    assert list(without.hosts_in_detail.items()) == []


def test_repeated_fields_count_as_they_stand_last() -> None:
    body = body_of({"h1": 0.5}, is_ascii=True, indent=None)
    body = body[:-1] + b', "hosts": [{"host": "a", "host": "h2"}], "weights": {"h2": 1, "h2": 2}}'
    request = parse_nova_call(body).request
    assert (request.hosts, request.weights) == (("h2",), {"h2": 2.0})


def test_list_that_came_before_letter_by_letter_is_not_decoded_again() -> None:
    weights = {f"again-{number}": float(number) for number in range(3)}
    first = parse_nova_call(body_of(weights, is_ascii=True, indent=None)).request
    second = parse_nova_call(body_of(weights, is_ascii=True, indent=None, pipeline="x")).request
    assert second.hosts is first.hosts
    assert second.weights is first.weights


def test_hosts_that_came_before_have_the_weights_of_their_own_call() -> None:
    first = parse_nova_call(body_of({"a": 1.0, "b": 2.0}, is_ascii=True, indent=None)).request
    second = parse_nova_call(body_of({"a": 2.0, "b": 1.0}, is_ascii=True, indent=None)).request
    assert second.hosts is first.hosts
    assert (first.weights, second.weights) == ({"a": 1.0, "b": 2.0}, {"a": 2.0, "b": 1.0})


@pytest.mark.parametrize("again", range(2))
def test_list_without_a_weight_for_each_host_is_refused_however_often_it_comes(again: int) -> None:
    body = body_of({"h1": 0.5}, is_ascii=True, indent=None)
    body = body[:-1] + b', "hosts": [{"host": "h2"}]}'
    for _ in range(again + 1):
        with pytest.raises(InvalidCall, match="missing weight"):
            parse_nova_call(body)


def test_lists_are_kept_up_to_a_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_lists, "MOST_KEPT_BYTES", 400)
    bodies = [
        body_of({f"host-{letter}": 0.5}, is_ascii=True, indent=None) for letter in "abcdefghij"
    ]
    first = [parse_nova_call(body).request for body in bodies]
    again = parse_nova_call(bodies[-1]).request
    assert again.hosts is first[-1].hosts
    assert parse_nova_call(bodies[0]).request.hosts is not first[0].hosts


@given(weights=LISTED, more=LISTED, is_ascii=st.booleans(), place=st.integers(0), byte=st.binary())
def test_body_whose_list_came_before_reads_as_if_it_were_the_first(
    weights: dict[str, Any], more: dict[str, Any], is_ascii: bool, place: int, byte: bytes
) -> None:
    known = body_of(weights, is_ascii=is_ascii, indent=None)
    hosts = json.dumps([{"host": "x", "list": list(more)}], ensure_ascii=is_ascii).encode()
    bodies = [
        known[:-1] + b', "hosts": ' + hosts + b"}",
        known[:-1] + b', "unread": ' + known + b"}",
        b'{"unread": ' + known + b", " + known[1:],
    ]
    place %= len(known)
    bodies.append(known[:place] + byte + known[place:])
    for body in bodies:
        host_lists._kept = ()
        expected = _read(body)
        host_lists._kept = ()
        _read(known)
        assert _read(body) == expected
        assert _read(body) == expected


def test_hosts_in_another_place_are_not_the_calls_own() -> None:
    body = body_of({"h1": 0.5}, is_ascii=True, indent=None)
    assert _read(body) == (("h1",), {"h1": 0.5})
    moved = body.replace(b'"hosts": ', b'"hosts": [{"host": "h2"}], "unread": ')
    moved = moved.replace(b'"weights": ', b'"weights": {"h2": 1}, "other": ')
    assert _read(moved) == (("h2",), {"h2": 1.0})


def _read(body: bytes) -> object:
    try:
        request = parse_nova_call(body).request
    except InvalidCall as error:
        return str(error)
    return request.hosts, request.weights
