"""Reservations and results on the wire, their names and their end (spec hosts, B.1, B.10, B.12)."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest
from headroom_host_agent.provision import base58
from headroom_host_agent.provision.ids import (
    IdError,
    filesystem_name,
    network_id,
    split_id,
    workload_id_from_filesystem,
)
from headroom_host_agent.provision.wire import (
    EPOCH,
    NEVER_NS,
    ZERO_TIME,
    Reservation,
    Result,
    ResultState,
    WireError,
    append_tag,
    format_tag,
    format_time,
    parse_time,
    reservation_from_json,
    reservation_to_json,
    result_from_json,
    result_to_json,
    state_name,
    state_number,
)
from hypothesis import given
from hypothesis import strategies as st

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
SECOND_NS = 10**9


@pytest.mark.parametrize(
    ("identity", "parts"), [("1-2", (1, 2)), ("0-0", (0, 0)), (f"{2**64 - 1}-7", (2**64 - 1, 7))]
)
def test_an_id_has_two_numbers(identity: str, parts: tuple[int, int]) -> None:
    assert split_id(identity) == parts


@pytest.mark.parametrize(
    ("identity", "words"),
    [
        ("12", "wrong length"),
        ("1-2-3", "wrong length"),
        ("", "wrong length"),
        ("a-2", "reservation"),
        ("-2", "reservation"),
        ("+1-2", "reservation"),
        ("1-b", "workload"),
        ("1-", "workload"),
        ("1-\u0661", "workload"),
        (f"{2**64}-1", "reservation"),
    ],
)
def test_what_is_no_id_says_which_part(identity: str, words: str) -> None:
    with pytest.raises(IdError, match=words):
        split_id(identity)


@pytest.mark.parametrize(("name", "number"), [("123-1", 123), ("77", 77)])
def test_a_file_system_tells_its_workload(name: str, number: int) -> None:
    assert workload_id_from_filesystem(name) == number
    assert filesystem_name("12-1") == "12-1"


@pytest.mark.parametrize("name", ["abc-1", "", "-1"])
def test_another_file_system_tells_none(name: str) -> None:
    with pytest.raises(IdError):
        workload_id_from_filesystem(name)


@pytest.mark.parametrize(
    ("user", "name", "identity"),
    [
        ("1", "tf_devnet", "Fm5zFVbdL8av8"),
        ("1", "tf_mainnet", "WYPjeU7vWXkXt"),
        ("11", "tf_devnet", "6JRkfcdSYoc9t"),
        ("1", "1tf_devnet", "6JRkfcdSYoc9t"),
        ("", "", "TCByYo9r1su7n"),
        ("user", "net", "P5Acq9wWk69fB"),
    ],
)
def test_a_network_has_an_id(user: str, name: str, identity: str) -> None:
    assert network_id(user, name) == identity


@given(octets=st.binary(max_size=80))
def test_base58_gives_back_what_it_was_given(octets: bytes) -> None:
    assert base58.decode(base58.encode(octets)) == octets


@pytest.mark.parametrize("text", ["0", "O", "I", "l", "a b", "\u00e9", "1" * 2000])
def test_what_is_no_base58_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match="base58"):
        base58.decode(text)


def test_states_are_numbers_on_the_wire() -> None:
    assert [state_name(number) for number in range(3)] == ["error", "ok", "deleted"]
    assert [state_number(state) for state in ResultState] == [0, 1, 2]
    assert state_name(3) == state_name(-1) == "UNKNOWN"
    assert Result().state == ResultState.ERROR  # a default reads as a failure


@pytest.mark.parametrize(
    ("created", "data", "is_nil"),
    [
        (ZERO_TIME, b"", True),
        (EPOCH, b"null", True),
        (ZERO_TIME, b"{}", False),
        (NOW, b"", False),
    ],
)
def test_an_empty_result_says_nothing(created: datetime, data: bytes, is_nil: bool) -> None:
    result = Result(type="volume", created=created, data=data, message="other fields are ignored")

    assert result.is_nil == is_nil


@pytest.mark.parametrize(
    ("created", "duration_ns", "expired"),
    [
        (NOW - timedelta(minutes=1), SECOND_NS, True),
        (NOW, 60 * SECOND_NS, False),
        (NOW - timedelta(seconds=1), SECOND_NS, False),
        (NOW - timedelta(seconds=1), SECOND_NS - 1000, True),
        (NOW - timedelta(seconds=1), SECOND_NS - 1, True),
        (NOW, NEVER_NS, False),
        (NOW, NEVER_NS - 1, False),
        (datetime(9999, 12, 31, tzinfo=UTC), NEVER_NS - 1, False),
        (ZERO_TIME, -NEVER_NS, True),
    ],
)
def test_a_reservation_ends_strictly_after_its_duration(
    created: datetime, duration_ns: int, expired: bool
) -> None:
    found = Reservation(
        id="1-1", node_id="n", user_id="u", type="t", created=created, duration_ns=duration_ns
    )

    assert found.expired(NOW) == expired
    assert (found.expires_at is None) == (duration_ns == NEVER_NS or created.year == 9999)


def test_tags_are_joined_and_sorted() -> None:
    assert append_tag(None, {"b": "2"}) == {"b": "2"}
    assert append_tag({"a": "1", "b": "1"}, {"b": "2"}) == {"a": "1", "b": "2"}
    assert format_tag({"b": "2", "a": "1"}) == "a: 1, b: 2"
    assert format_tag({}) == ""


DOCUMENT = b"""{
 "id": "12-1", "node_id": "node1", "user_id": "7", "type": "volume",
 "data": {"size":20,  "type":"ssd", "x": "\\u00e9\xc3\xa9"},
 "created": "2026-01-02T03:04:05.123456789Z",
 "duration": 9223372036854775807, "to_delete": true, "reference": "11-1", "new": [1],
 "result": {"type": "volume", "id": "12-1", "created": "1970-01-01T00:00:00Z", "state": 1,
            "message": "", "data_json": null, "signature": ""},
 "version": 1
}"""


def test_a_reservation_is_read_and_keeps_the_bytes_of_its_data() -> None:
    found = reservation_from_json(DOCUMENT)

    assert (found.id, found.user_id, found.type, found.reference) == ("12-1", "7", "volume", "11-1")
    assert found.data == b'{"size":20,  "type":"ssd", "x": "\\u00e9\xc3\xa9"}'
    assert found.created == NOW.replace(microsecond=123456)
    assert (found.duration_ns, found.to_delete, found.version) == (NEVER_NS, True, 1)
    assert (found.result.state, found.result.is_nil) == (ResultState.OK, True)


TIMES = st.datetimes(timezones=st.just(UTC))
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
).map(lambda value: json.dumps(value, indent=1).encode())
SIGNATURES = st.just(b"") | st.binary(min_size=64, max_size=64)
RESULTS = st.builds(
    Result,
    type=st.text(),
    id=st.text(),
    created=TIMES,
    state=st.sampled_from(ResultState),
    message=st.text(),
    data=JSON,
    signature=SIGNATURES,
)
RESERVATIONS = st.builds(
    Reservation,
    id=st.text(),
    node_id=st.text(),
    user_id=st.text(),
    type=st.text(),
    data=st.just(b"") | JSON,
    created=TIMES,
    duration_ns=st.integers(min_value=-(2**63) + 1, max_value=2**63 - 1),
    signature=SIGNATURES,
    to_delete=st.booleans(),
    reference=st.text(),
    result=RESULTS,
    version=st.integers(min_value=0, max_value=9),
)


@given(reservation=RESERVATIONS)
def test_what_is_written_is_read_back(reservation: Reservation) -> None:
    document = reservation_to_json(reservation)

    assert reservation_from_json(document) == reservation
    keys = json.loads(document)
    assert ("data" in keys, "signature" in keys) == (
        reservation.data != b"",
        reservation.signature != b"",
    )
    assert result_from_json(result_to_json(reservation.result)) == reservation.result


@pytest.mark.parametrize(
    "document",
    [
        b"",
        b"[]",
        b"{",
        b"{}x",
        b'{"id": 1}',
        b'{"id": "a", "id": "b"}',
        b'{"id" "a"}',
        b'{"id": "a",}',
        b'{1: "a"}',
        b'{"duration": 1.5}',
        b'{"duration": true}',
        b'{"duration": 9223372036854775808}',
        b'{"created": "yesterday"}',
        b'{"created": "2026-13-01T00:00:00Z"}',
        b'{"created": "0001-01-01T00:00:00+02:00"}',
        b'{"to_delete": 1}',
        b'{"signature": "?"}',
        b'{"signature": "AAAA"}',
        b'{"result": []}',
        b'{"result": {"state": 3}}',
        b'{"result": {"signature": "zz"}}',
        b'{"id": "\xff"}',
        b'{"data": ' + b"[" * 100_000 + b"}",
    ],
)
def test_what_is_no_reservation_is_an_error(document: bytes) -> None:
    with pytest.raises(WireError):
        reservation_from_json(document)


@given(document=st.binary(max_size=60))
def test_no_document_fails_otherwise(document: bytes) -> None:
    for read in (reservation_from_json, result_from_json):
        try:
            read(document)
        except WireError:
            continue


@pytest.mark.parametrize(
    ("text", "time"),
    [
        ("0001-01-01T00:00:00Z", ZERO_TIME),
        ("2026-01-02T05:04:05+02:00", NOW),
        ("2026-01-02T03:04:05.5Z", NOW.replace(microsecond=500_000)),
    ],
)
def test_times_are_read_in_any_zone_and_written_in_utc(text: str, time: datetime) -> None:
    assert parse_time(text) == time
    assert parse_time(format_time(time)) == time
    assert format_time(time).endswith("Z")
