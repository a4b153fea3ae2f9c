"""What agents signed, verified by somebody who has neither server nor agent (spec hosts, D.15).

An export has a host's public keys, the reservations that are known of it and all results that are
kept of them, each as the agent signed it. Only signatures count: who writes the file can leave
results out, but then what counts as made has no proof, and can make none up.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Collection, Iterator, Mapping, Set
from dataclasses import dataclass, replace
from typing import Final

from headroom_host_agent.provision.signing.keys import SigningError, key_id, verify
from headroom_host_agent.provision.signing.v2 import Sealed, result_bytes, unseal

FORMAT: Final = "headroom/host-results/v1"
DEPLOYED: Final = "deployed"


class ExportError(ValueError):
    """The file is no export of results."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What was found of a result, or of a reservation that should have one.

    Attributes:
        kid: Name of the key that signed it; empty without a result.
        problem: Why it proves nothing; empty when it holds.
    """

    reservation_id: str
    attempt: int
    state: str
    kid: str = ""
    problem: str = ""


def verify_export(document: object, trusted: Collection[str] = ()) -> Iterator[Finding]:
    """Yield what is found of each result, and of each deployed reservation that lacks one.

    Args:
        document: The JSON of an export.
        trusted: Names of keys; of all others nothing holds. Empty: all keys of the export.

    Raises:
        ExportError: It is no export.
    """
    export = _object(document, "the export")
    if export.get("format") != FORMAT:
        raise ExportError(f"format: must be {FORMAT}")
    host_id = _text(export, "host_id")
    keys = {
        kid: key for kid, key in _keys(_list(export, "keys")).items() if kid in (trusted or {kid})
    }
    told: set[tuple[str, int, str]] = set()
    for entry in _list(export, "results"):
        sealed, problem = _sealed(_object(entry, "a result").get("result"), host_id, keys)
        said = _said(sealed)
        attempt = (said.reservation_id, said.attempt)
        # An error after ok says that it died; ok after an error is no answer of the same attempt.
        barred = {said.state, "error"} if said.state == "ok" else {said.state}
        if not problem and any((*attempt, state) in told for state in barred):
            problem = "another result of this attempt is there already"
        if not problem:
            told.add((*attempt, said.state))
        yield replace(said, problem=problem)
    yield from _unproven(_list(export, "reservations"), told)


def _unproven(reservations: list[object], told: Set[tuple[str, int, str]]) -> Iterator[Finding]:
    """Yield the reservations that count as made and that no result proves."""
    for one in reservations:
        reservation = _object(one, "a reservation")
        name, attempt = _text(reservation, "id"), _number(reservation, "attempt")
        state = _text(reservation, "state")
        is_proven = (name, attempt, "ok") in told and not (
            {(name, attempt, "error"), (name, attempt, "deleted")} & told
        )
        if state == DEPLOYED and not is_proven:
            problem = "counts as made, and no result that holds says so"
            yield Finding(reservation_id=name, attempt=attempt, state=state, problem=problem)


def _sealed(sent: object, host_id: str, keys: Mapping[str, bytes]) -> tuple[Sealed | None, str]:
    """Return a result as it was sent, and why it proves nothing."""
    try:
        sealed = unseal(sent)
        signed = result_bytes(sealed.document)
    except SigningError as error:
        return None, str(error)
    if sealed.document["host_id"] != host_id:
        return sealed, "it is another host's"
    key = keys.get(sealed.kid)
    if key is None:
        return sealed, f"the key {sealed.kid} is not trusted"
    if not verify(key, sealed.signature, signed):
        return sealed, "the signature does not hold"
    return sealed, ""


def _said(sealed: Sealed | None) -> Finding:
    """Return what a result is of, whether it holds or not."""
    document: Mapping[str, object] = {} if sealed is None else sealed.document
    attempt = document.get("attempt")
    return Finding(
        reservation_id=str(document.get("reservation_id", "")),
        attempt=attempt if type(attempt) is int else 0,
        state=str(document.get("state", "")),
        kid="" if sealed is None else sealed.kid,
    )


def _keys(listed: list[object]) -> dict[str, bytes]:
    """Return name -> public key; a name is made of its key, so nobody gives one to another."""
    keys = {}
    for one in listed:
        row = _object(one, "a key")
        kid = _text(row, "kid")
        try:
            public_key = base64.b64decode(_text(row, "public_key"), validate=True)
            verify(public_key, b"", b"")  # whether it is a key at all
        except (binascii.Error, ValueError) as error:
            raise ExportError(f"key {kid}: {error}") from None
        if key_id(public_key) != kid:
            raise ExportError(f"key {kid}: the key has the name {key_id(public_key)}")
        keys[kid] = public_key
    return keys


def _object(value: object, name: str) -> Mapping[str, object]:
    if not isinstance(value, dict):
        raise ExportError(f"{name} must be an object")
    return value


def _list(row: Mapping[str, object], name: str) -> list[object]:
    value = row.get(name)
    if not isinstance(value, list):
        raise ExportError(f"{name}: must be a list")
    return value


def _text(row: Mapping[str, object], name: str) -> str:
    value = row.get(name)
    if not isinstance(value, str):
        raise ExportError(f"{name}: must be a text")
    return value


def _number(row: Mapping[str, object], name: str) -> int:
    value = row.get(name)
    if type(value) is not int:
        raise ExportError(f"{name}: must be a number")
    return value
