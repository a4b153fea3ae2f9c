"""Signatures of an older engine and ours (spec hosts, B.2, D.5)."""

from __future__ import annotations

import base64
import hashlib
import json
from dataclasses import replace

import pytest
from headroom_host_agent.provision import base58
from headroom_host_agent.provision.signing import v1, v2
from headroom_host_agent.provision.signing.keys import SigningError, key_id, sign, verify
from headroom_host_agent.provision.wire import Reservation, Result, ResultState
from hypothesis import given
from hypothesis import strategies as st

SEED = bytes(range(32))
PUBLIC = bytes.fromhex("03a107bff3ce10be1d70dd18e74bc09967e4d6309ba50d5f1ddc8664125531b8")
USER = "FAe4sisG95oZ42w7buUn5qEE4TAnfTTFPiguZUHmhiF"
HOST = "4b6c8a4e-5a4f-4a53-9d0e-0f5b3c1d2e3f"
KID = "Vkdap1RjR0wChd9d"
RESERVATION = Reservation(
    id="1-1", node_id="node1", user_id=USER, type="volume", data=b'{"size":20,"type":"ssd"}'
)
OWNERS = bytes.fromhex(
    "1e4c9680b2ce6fb9478b0d65db41b92bcdfb1a00878e094958b6f4eb5f87c092"
    "067761d6c9f9153d1d4febd076b267c411616ed1e48d45442731228ef7ff7f02"
)


def test_a_key_has_its_names() -> None:
    assert base58.encode(PUBLIC) == USER
    assert key_id(PUBLIC) == KID


def test_an_older_reservation_is_signed_and_verified() -> None:
    signed = replace(RESERVATION, signature=OWNERS)

    assert len(v1.reservation_bytes(RESERVATION)) == 78
    assert v1.sign_reservation(SEED, RESERVATION) == OWNERS
    assert v1.verify_reservation(signed)
    # What nothing covers.
    assert v1.verify_reservation(replace(signed, id="2-2", duration_ns=5, to_delete=True))


@pytest.mark.parametrize(
    ("result", "signed", "signature"),
    [
        (
            Result(state=ResultState.OK, data=b"null"),
            "016e756c6c",
            (
                "dddab7b0efa75819e0da5135940d3818864e3549f7dbcfae6748c183d6a0d8d2"
                "2d30201e96717105f1cdb5f6c738a75691d71cc0952e08f9dc35a5053ad27b0a"
            ),
        ),
        (
            Result(state=ResultState.ERROR, message="boom", data=b"null"),
            "00626f6f6d6e756c6c",
            (
                "3a3ebe7a8d538b0b7a0df370dfc936043d5e8ee4039c23ba282e779125b16dc1"
                "11be2530d65425b0b54cfff47c124635f399f3364ef9a6ec377f9c6f6b955405"
            ),
        ),
    ],
)
def test_an_older_result_is_signed_and_verified(
    result: Result, signed: str, signature: str
) -> None:
    assert v1.result_bytes(result).hex() == signed
    assert v1.sign_result(SEED, result).hex() == signature
    assert v1.verify_result(PUBLIC, replace(result, signature=bytes.fromhex(signature)))
    assert not v1.verify_result(
        PUBLIC, replace(result, signature=bytes.fromhex(signature), message="other")
    )


@pytest.mark.parametrize(
    "change",
    [
        {"node_id": "node2"},
        {"user_id": base58.encode(bytes(31) + b"\x01")},
        {"type": "volumes"},
        {"data": RESERVATION.data + b" "},
        {"signature": b"\x01" * 64},
        {"signature": b""},
        {"signature": OWNERS[:63]},
    ],
)
def test_a_changed_part_fails_verification(change: dict[str, str]) -> None:
    changed = replace(replace(RESERVATION, signature=OWNERS), **change)  # type: ignore[arg-type]

    assert not v1.verify_reservation(changed)


@given(signature=st.binary(min_size=64, max_size=64))
def test_random_bytes_fail_verification(signature: bytes) -> None:
    assert not v1.verify_reservation(replace(RESERVATION, signature=signature))


@pytest.mark.parametrize("user", ["", "1", USER[:-1], USER + "11", "0O", "x" * 5000])
def test_a_user_that_is_no_key_is_an_error(user: str) -> None:
    with pytest.raises(SigningError):
        v1.verify_reservation(replace(RESERVATION, user_id=user, signature=OWNERS))


@pytest.mark.parametrize("size", [0, 31, 33, 64])
def test_a_key_of_another_size_is_an_error(size: int) -> None:
    with pytest.raises(SigningError):
        sign(bytes(size), b"")
    with pytest.raises(SigningError):
        verify(bytes(size), bytes(64), b"")


def test_an_owner_signs_the_digest_of_all_parts() -> None:
    parts = (7, "node1", 3, "", 42, "VOLUME", 1767323045, "text", "{}", 20, "SSD")

    text = b"7node1342VOLUME1767323045text{}20SSD"
    assert v1.owner_digest(parts) == hashlib.sha256(text).digest()


@pytest.mark.parametrize(
    ("signers", "least", "is_enough"),
    [
        ([1, 2], 2, True),
        ([1, 1], 2, False),
        ([1, 9], 2, False),
        ([1, 9, 3], 2, True),
        ([], 0, True),
    ],
)
def test_a_quorum_counts_each_listed_signer_once(
    signers: list[int], least: int, is_enough: bool
) -> None:
    assert v1.has_quorum(signers, listed={1, 2, 3}, least=least) == is_enough


def request(**change: object) -> v2.SignedRequest:
    facts: dict[str, object] = {
        "method": "POST",
        "path": f"/hosts/v1/{HOST}/heartbeat",
        "body": b'{"uptime":42}',
        "timestamp": 1767323045,
        "nonce": "00112233445566778899aabbccddeeff",
        "host_id": HOST,
        "kid": KID,
        "fence_epoch": 3,
    }
    return v2.SignedRequest(**(facts | change))  # type: ignore[arg-type]  # fields by name


HEARTBEAT = request()
POLL = request(
    method="GET",
    path=f"/hosts/v1/{HOST}/reservations",
    query=(("wait", "25"), ("from", "7"), ("limit", "200")),
    body=b"",
    timestamp=1767323046,
    nonce="ffeeddccbbaa99887766554433221100",
)
RESULT: dict[str, object] = {
    "attempt": 1,
    "data": {"slice": "headroom-42_1.slice"},
    "error": "",
    "fence_epoch": 3,
    "finished_at": "2026-01-02T03:04:05Z",
    "host_id": HOST,
    "reservation_id": "42-1",
    "state": "ok",
    "type": "capacity_slice",
}
NEW_RESERVATION: dict[str, object] = {
    "attempt": 1,
    "created_at": "2026-01-02T03:00:00Z",
    "data": {"cpu_weight": 200},
    "duration_ns": 0,
    "fence_epoch": 3,
    "host_id": HOST,
    "id": "42-1",
    "reference": "",
    "resources": {"cpu": 8, "memory": 34359738368},
    "seq": 7,
    "to_delete": False,
    "type": "capacity_slice",
    "user_id": "9f2c",
    "version": 2,
}
VECTORS = {
    "heartbeat": (
        v2.request_bytes(HEARTBEAT),
        ("3d029e19", "5f87e9"),
        "jU4gUi4lCViladlukKIxmDRRo5qUDdqAM4VjL7JvLeTQTQ9NanecQoLMjeFaTycDsPgg2ZIMzHnQubv9g3r6Dg==",
    ),
    "poll": (
        v2.request_bytes(POLL),
        ("bc891595", "a13f7a"),
        "6foRH73ZXPvow4kcZkfvV6B/ymuZPc48ag1W3aHRwstYN2jUQy1xrCVnynsx5rSneHLB1CJXOoh6rtvdY3LmBw==",
    ),
    "result": (
        v2.result_bytes(RESULT),
        ("3ec8e7ef", "9ed881"),
        "0EHFkMPG5aSNuJJGETWa2wcelWGz7I5SH3t+cTMVyWB7C8WgM1lIKaSV28u3U/Cbl1DpZDh6GMqjne83jPnVBg==",
    ),
    "reservation": (
        v2.reservation_bytes(NEW_RESERVATION),
        ("ef43af2a", "bb33c7"),
        "+0dQNNS9+5k4WRmrAVA6didhsTRnVOMsfVW/8JEFI9Dg5M30uXYVNqjYsjejQT0Vx9ATnsOzjmdGL1mXpxWcBQ==",
    ),
}


@pytest.mark.parametrize("name", VECTORS)
def test_what_we_sign_is_as_documented(name: str) -> None:
    signed, (start, end), signature = VECTORS[name]

    digest = hashlib.sha256(signed).hexdigest()
    assert (digest[: len(start)], digest[-len(end) :]) == (start, end)
    assert base64.b64encode(sign(SEED, signed)).decode() == signature
    assert verify(PUBLIC, base64.b64decode(signature), signed)


@pytest.mark.parametrize(
    "change",
    [
        {"method": "PUT"},
        {"path": f"/hosts/v1/{HOST}/stats"},
        {"query": (("a", "b"),)},
        {"body": b'{"uptime":43}'},
        {"timestamp": 1767323046},
        {"nonce": "0" * 32},
        {"host_id": HOST[:-1] + "0"},
        {"kid": "another"},
        {"fence_epoch": 4},
    ],
)
def test_a_request_binds_each_of_its_parts(change: dict[str, object]) -> None:
    signature = sign(SEED, v2.request_bytes(HEARTBEAT))

    assert not verify(PUBLIC, signature, v2.request_bytes(request(**change)))


def test_no_part_of_a_request_makes_a_line_of_its_own() -> None:
    with pytest.raises(SigningError, match="line break"):
        v2.request_bytes(request(path="/a\nb"))


@pytest.mark.parametrize(
    ("document", "name"), [(RESULT, "result"), (NEW_RESERVATION, "reservation")]
)
def test_a_document_binds_each_of_its_fields(document: dict[str, object], name: str) -> None:
    make = v2.result_bytes if name == "result" else v2.reservation_bytes
    signature = sign(SEED, make(document))

    for key in document:
        changed = document | {key: "other"}
        assert not verify(PUBLIC, signature, make(changed))
        with pytest.raises(SigningError, match=key):
            make({field: value for field, value in document.items() if field != key})
    with pytest.raises(SigningError, match="more"):
        make(document | {"more": 1})


def test_one_kind_of_document_never_passes_as_another() -> None:
    domains = {v2.REQUEST_DOMAIN, v2.RESERVATION_DOMAIN, v2.RESULT_DOMAIN}

    assert {signed.split(b"\n")[0].decode() for signed, _, _ in VECTORS.values()} == domains


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(value=VALUES)
def test_a_canonical_form_is_read_back_and_is_one(value: object) -> None:
    canonical = v2.canonical_json(value)

    assert v2.parse_json(canonical) == value
    assert v2.canonical_json(v2.parse_json(json.dumps(value, indent=2).encode())) == canonical


def test_a_canonical_form_is_short_sorted_and_literal() -> None:
    value = {"\U0001f600": 1, "\ufffd": [], "b": "\u00e9\n\x01", "a": {"y": None, "x": True}}

    assert v2.canonical_json(value).decode() == (
        '{"a":{"x":true,"y":null},"b":"\u00e9\\n\\u0001","\ufffd":[],"\U0001f600":1}'
    )


@pytest.mark.parametrize(
    "value", [1.5, {"a": [1.0]}, {1: 2}, "\ud800", {"a": b""}, float("nan"), {None: 1}]
)
def test_what_has_no_canonical_form_is_an_error(value: object) -> None:
    with pytest.raises(SigningError):
        v2.canonical_json(value)


@pytest.mark.parametrize(
    "document",
    [b"", b"{", b"1.5", b"1e3", b"NaN", b"Infinity", b'{"a":1,"a":1}', b'"\xff"', b"[" * 100_000],
)
def test_a_document_without_a_canonical_form_is_an_error(document: bytes) -> None:
    with pytest.raises(SigningError):
        v2.parse_json(document)


def test_what_is_sent_has_its_key_and_signature_beside_its_fields() -> None:
    signature = sign(SEED, v2.result_bytes(RESULT))

    sent = v2.seal(RESULT, kid=KID, signature=signature)

    assert set(sent) == {*RESULT, "kid", "signature"}
    opened = v2.unseal(json.loads(json.dumps(sent)))
    assert (opened.document, opened.kid, opened.signature) == (RESULT, KID, signature)


@pytest.mark.parametrize(
    "sent",
    [
        None,
        [],
        {},
        {"kid": KID},
        {"kid": 1, "signature": ""},
        {"kid": KID, "signature": "x"},
        {"kid": KID, "signature": "ä"},
    ],
)
def test_what_is_not_sealed_is_refused(sent: object) -> None:
    with pytest.raises(SigningError):
        v2.unseal(sent)


def test_what_keys_sign_of_keys_is_of_no_other_use() -> None:
    signed = {
        v2.rotation_bytes(HOST, KID),
        v2.rotation_bytes(HOST, "another"),
        v2.server_key_bytes(PUBLIC),
        v2.server_key_bytes(SEED),
        v2.enrolment_bytes(HOST, KID),
    }

    assert len({part.split(b"\n")[0] for part in signed}) == 3
    assert len(signed) == 5
