"""Which hosts and weights are read of a body, however it is written (spec scheduling, 2.3)."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

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
    assert parse_nova_call(body).hosts_in_detail == ["h1", "h2"]
    without = parse_nova_call(body_of({"h1": weight}, is_ascii=True, indent=None))
    assert without.hosts_in_detail is None


def test_repeated_fields_count_as_they_stand_last() -> None:
    body = body_of({"h1": 0.5}, is_ascii=True, indent=None)
    body = body[:-1] + b', "hosts": [{"host": "a", "host": "h2"}], "weights": {"h2": 1, "h2": 2}}'
    request = parse_nova_call(body).request
    assert (request.hosts, request.weights) == (("h2",), {"h2": 2.0})


REGULAR_NAMES = st.text(st.characters(max_codepoint=127), max_size=20) | st.sampled_from(
    ["node1", "node2", "node003-az-c", "nöde", "", ", ", ": ", "host", "}, {", "a" * 256, "a" * 257]
)
SEPARATORS = st.sampled_from([(", ", ": "), (",", ":"), (" , ", ": ")])


@given(
    names=st.lists(REGULAR_NAMES, max_size=8),
    weighed=st.lists(st.just(0.0) | NUMBERS, min_size=8, max_size=8),
    hypervisors=st.lists(REGULAR_NAMES, min_size=8, max_size=8),
    order=st.permutations(range(8)) | st.just(range(8)),
    separators=SEPARATORS,
)
def test_list_as_nova_writes_it_reads_as_a_plain_decoder_reads_it(
    names: list[str],
    weighed: list[Any],
    hypervisors: list[str],
    order: list[int],
    separators: tuple[str, str],
) -> None:
    body = NovaClient().body()
    body["hosts"] = [
        {"host": name, "hypervisor_hostname": other}
        for name, other in zip(names, hypervisors, strict=False)
    ]
    places = [place for place in order if place < len(names)]
    body["weights"] = {names[place]: weighed[place] for place in places}
    request = parse_nova_call(json.dumps(body, separators=separators).encode()).request
    assert tuple(request.hosts or ()) == tuple(names)
    assert request.weights == {name: float(weight or 0) for name, weight in body["weights"].items()}
    assert all(name in (request.hosts or ()) for name in names)
    assert "another" not in (request.weights or {})


@given(
    names=st.lists(REGULAR_NAMES, min_size=1, max_size=3),
    weight=st.sampled_from([0.0, 0.5]),
    place=st.integers(0),
    byte=st.binary(min_size=1, max_size=1) | st.sampled_from([b'"', b"\\", b",", b"}", b"\x1f"]),
)
def test_damaged_list_is_refused_or_says_what_a_plain_decoder_reads(
    names: list[str], weight: float, place: int, byte: bytes
) -> None:
    content = {
        "hosts": [{"host": name, "hypervisor_hostname": name} for name in names],
        "weights": dict.fromkeys(names, weight),
    }
    listed = json.dumps(content).encode()[:-1]
    place %= len(listed)
    listed = listed[:place] + byte + listed[place + 1 :]
    body = listed + b", " + json.dumps({"spec": NovaClient().body()["spec"]}).encode()[1:]
    try:
        request = parse_nova_call(body).request
    except InvalidCall:
        return
    plain = json.loads(body)
    assert tuple(request.hosts or ()) == tuple(
        entry.get("host") or "" for entry in plain.get("hosts") or ()
    )
    read = {name: float(given or 0) for name, given in (plain.get("weights") or {}).items()}
    assert request.weights == read


@pytest.mark.parametrize("again", range(2))
def test_list_without_a_weight_for_each_host_is_refused_however_often_it_comes(again: int) -> None:
    body = body_of({"h1": 0.5}, is_ascii=True, indent=None)
    body = body[:-1] + b', "hosts": [{"host": "h2"}]}'
    for _ in range(again + 1):
        with pytest.raises(InvalidCall, match="missing weight"):
            parse_nova_call(body)
