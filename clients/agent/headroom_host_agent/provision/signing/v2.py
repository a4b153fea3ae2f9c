"""Signatures that bind host, id, attempt and epoch (spec hosts, D.5).

Each covers a line that names its domain, so one kind never passes as another.
"""

from __future__ import annotations

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
