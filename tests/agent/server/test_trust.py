"""Which keys of the server an agent trusts (spec hosts, D.4)."""

from __future__ import annotations

import base64

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from headroom_host_agent.provision.signing.keys import SigningError, key_id, sign
from headroom_host_agent.provision.signing.v2 import server_key_bytes
from headroom_host_agent.server.trust import (
    UntrustedKeyError,
    trusted_keys,
    verified_reservation,
)

from tests.agent.process.served import KEY, Headroom
from tests.agent.provision.workshop import reservation


def public(seed: bytes) -> bytes:
    return Ed25519PrivateKey.from_private_bytes(seed).public_key().public_bytes_raw()


SEEDS = [bytes([number]) * 32 for number in range(4)]
KIDS = [key_id(public(seed)) for seed in SEEDS]
TEXTS = [base64.b64encode(public(seed)).decode() for seed in SEEDS]


def told(number: int, by: int | None = None, *, signs: int | None = None) -> dict[str, str]:
    """Return a key as the server tells it, signed by another one."""
    one = {"kid": KIDS[number], "key": TEXTS[number]}
    if by is None:
        return one
    seed = SEEDS[by if signs is None else signs]
    signature = sign(seed, server_key_bytes(public(SEEDS[number])))
    return one | {"signed_by": KIDS[by], "signature": base64.b64encode(signature).decode()}


KNOWN = {KIDS[0]: TEXTS[0]}
CASES: list[tuple[str, dict[str, str], object, set[int]]] = [
    ("the first keys are taken", {}, [told(1, 0), told(0)], {0, 1}),
    ("a key that a trusted one signed", KNOWN, [told(1, 0), told(0)], {0, 1}),
    ("a chain", KNOWN, [told(2, 1), told(1, 0)], {1, 2}),
    ("one that is told no more is done with", KNOWN, [told(1, 0)], {1}),
    ("a key that nobody signed", KNOWN, [told(3), told(0)], {0}),
    ("a key that only a stranger signed", KNOWN, [told(3, 2), told(0)], {0}),
    ("a stranger in a trusted name", KNOWN, [told(3, 0, signs=3), told(0)], {0}),
    ("another key in a trusted name", KNOWN, [{"kid": KIDS[0], "key": TEXTS[3]}], {0}),
    ("strangers alone", KNOWN, [told(3)], {0}),
    ("nothing", KNOWN, [], {0}),
    ("no list", KNOWN, {"kid": "x"}, {0}),
    ("malformed keys", KNOWN, [None, {"kid": 1, "key": "!"}, {"kid": KIDS[1]}], {0}),
]


@pytest.mark.parametrize(
    ("known", "sent", "wanted"), [case[1:] for case in CASES], ids=[case[0] for case in CASES]
)
def test_keys_are_trusted(known: dict[str, str], sent: object, wanted: set[int]) -> None:
    assert trusted_keys(known, sent) == {KIDS[number]: TEXTS[number] for number in wanted}


def test_a_reservation_is_taken_if_a_trusted_key_signed_just_that() -> None:
    headroom = Headroom()
    sealed = headroom.sealed(reservation("1-1", seq=1))
    keys = {key_id(KEY): base64.b64encode(KEY).decode()}

    assert verified_reservation(sealed, keys).id == "1-1"
    with pytest.raises(UntrustedKeyError):
        verified_reservation(sealed, KNOWN)
    for change in ({"id": "2-1"}, {"to_delete": True}, {"attempt": 2}, {"fence_epoch": 9}):
        with pytest.raises(SigningError):
            verified_reservation(sealed | change, keys)
    wrong: tuple[object, ...] = (None, [], {}, {**sealed, "signature": "!"}, {**sealed, "more": 1})
    for sent in wrong:
        with pytest.raises(SigningError):
            verified_reservation(sent, keys)
