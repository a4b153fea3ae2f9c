"""Signatures that bind host, id, attempt and epoch (spec hosts, D.5).

Each covers a line that names its domain, so one kind never passes as another.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from urllib.parse import quote

from headroom_host_agent.provision.signing.keys import SigningError

REQUEST_DOMAIN = "headroom/host-request/v1"
ENROLMENT_DOMAIN = "headroom/host-enrol/v1"
RESERVATION_DOMAIN = "headroom/host-reservation/v2"
RESULT_DOMAIN = "headroom/host-result/v2"
ROTATION_DOMAIN = "headroom/host-key/v1"
SERVER_KEY_DOMAIN = "headroom/host-server-key/v1"
RESERVATION_FIELDS = frozenset({
    "id", "host_id", "user_id", "type", "data", "resources", "created_at", "duration_ns",
    "reference", "to_delete", "version", "attempt", "seq", "fence_epoch",
})  # fmt: skip
RESULT_FIELDS = frozenset({
    "reservation_id", "host_id", "attempt", "fence_epoch", "type", "state", "error", "data",
    "finished_at",
})  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class SignedRequest:
    """What a signature of a request covers.

    Attributes:
        query: Pairs in any order, not encoded.
        timestamp: Unix seconds.
        nonce: 32 hexadecimal digits.
    """

    method: str
    path: str
    query: tuple[tuple[str, str], ...] = ()
    body: bytes = b""
    timestamp: int
    nonce: str
    host_id: str
    kid: str
    fence_epoch: int


def request_bytes(request: SignedRequest) -> bytes:
    """Return the ten lines that an agent signs.

    Raises:
        SigningError: A part would make a line of its own.
    """
    lines = (
        REQUEST_DOMAIN,
        request.method.upper(),
        request.path,
        canonical_query(request.query),
        hashlib.sha256(request.body).hexdigest(),
        str(request.timestamp),
        request.nonce,
        request.host_id,
        request.kid,
        str(request.fence_epoch),
    )
    if any("\n" in line for line in lines):
        raise SigningError("a part of the request has a line break")
    return "\n".join(lines).encode()


def canonical_query(pairs: Iterable[tuple[str, str]]) -> str:
    """Return pairs encoded, sorted and joined."""
    encoded = sorted((quote(key, safe=""), quote(value, safe="")) for key, value in pairs)
    return "&".join(f"{key}={value}" for key, value in encoded)


def enrolment_bytes(token_sha256: str, name: str) -> bytes:
    """Return what proves that who enrols has the key; the digest of the token in hexadecimal."""
    return f"{ENROLMENT_DOMAIN}\n{token_sha256}\n{name}".encode()


def rotation_bytes(host_id: str, kid: str) -> bytes:
    """Return what proves that a host has the private key of its next key, which is ``kid``."""
    return f"{ROTATION_DOMAIN}\n{host_id}\n{kid}".encode()


def server_key_bytes(public_key: bytes) -> bytes:
    """Return what an older key of the server signs of the one that follows it."""
    return f"{SERVER_KEY_DOMAIN}\n{public_key.hex()}".encode()


def reservation_bytes(reservation: Mapping[str, object]) -> bytes:
    """Return what the server signs of a reservation: all of ``RESERVATION_FIELDS``.

    Raises:
        SigningError: A field is missing or too many, or has no canonical form.
    """
    return _domain(RESERVATION_DOMAIN, reservation, RESERVATION_FIELDS)


def result_bytes(result: Mapping[str, object]) -> bytes:
    """Return what an agent signs of a result: all of ``RESULT_FIELDS``.

    Raises:
        SigningError: As ``reservation_bytes``.
    """
    return _domain(RESULT_DOMAIN, result, RESULT_FIELDS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sealed:
    """A document as it was sent, not verified yet; ``kid`` names the key that signed it."""

    document: Mapping[str, object]
    kid: str
    signature: bytes


def seal(document: Mapping[str, object], *, kid: str, signature: bytes) -> dict[str, object]:
    """Return a document as it is sent: its fields, ``kid`` and ``signature`` (base64)."""
    return {**document, "kid": kid, "signature": base64.b64encode(signature).decode()}


def unseal(sent: object) -> Sealed:
    """Return what :func:`seal` was given.

    Raises:
        SigningError: It is no object, or ``kid`` or ``signature`` is missing or malformed.
    """
    if not isinstance(sent, dict):
        raise SigningError("it is no object")
    document = dict(sent)
    kid, encoded = document.pop("kid", None), document.pop("signature", None)
    if not isinstance(kid, str) or not isinstance(encoded, str):
        raise SigningError("kid or signature is missing")
    try:
        signature = base64.b64decode(encoded, validate=True)
    except (binascii.Error, ValueError):
        raise SigningError("the signature is no base64") from None
    return Sealed(document=document, kid=kid, signature=signature)


def _domain(domain: str, document: Mapping[str, object], fields: frozenset[str]) -> bytes:
    if set(document) != fields:
        wrong = ", ".join(sorted(set(document) ^ fields))
        raise SigningError(f"fields are missing or too many: {wrong}")
    return domain.encode() + b"\n" + canonical_json(dict(document))


def canonical_json(value: object) -> bytes:
    """Return the one spelling of a value: sorted keys, no space, no floats.

    Raises:
        SigningError: It holds a float, a key that is no text, or a text that is no Unicode.
    """
    try:
        _refuse_other(value)
        text = json.dumps(
            value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
        )
        return text.encode()
    except (UnicodeEncodeError, RecursionError):
        raise SigningError("no canonical form: a text is no Unicode, or it is too deep") from None


def parse_json(document: bytes) -> object:
    """Return the value of a JSON document that has a canonical form, however it is written.

    Raises:
        SigningError: It is no JSON, or holds floats or repeated keys.
    """
    try:
        return json.loads(
            document.decode("utf-8"),
            object_pairs_hook=_unique,
            parse_float=_no_float,
            parse_constant=_no_float,
        )
    except SigningError:
        raise
    except (ValueError, RecursionError):
        raise SigningError("no JSON") from None


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise SigningError("a key is repeated")
    return members


def _no_float(text: str) -> object:
    raise SigningError(f"{text} is no integer")


def _refuse_other(value: object) -> None:
    if isinstance(value, dict):
        for key, member in value.items():
            if not isinstance(key, str):
                raise SigningError(f"the key {key!r} is no text")
            _refuse_other(member)
    elif isinstance(value, list | tuple):
        for member in value:
            _refuse_other(member)
    elif not isinstance(value, str | int | None):
        raise SigningError(f"{type(value).__name__} has no canonical form")
