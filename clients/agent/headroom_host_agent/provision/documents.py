"""Reservations and results as the server and its agents sign them (spec hosts, D.5)."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from headroom_host_agent.provision.signing.v2 import RESERVATION_FIELDS, canonical_json, parse_json
from headroom_host_agent.provision.wire import (
    NEVER_NS,
    Reservation,
    Result,
    WireError,
    format_time,
    parse_time,
)

_TEXTS = ("id", "host_id", "user_id", "type", "reference")
_NUMBERS = {"duration_ns": 0, "version": 0, "attempt": 1, "seq": 0, "fence_epoch": 0}  # least


def reservation_from_document(document: Mapping[str, object]) -> Reservation:
    """Return the reservation of a document whose signature was verified.

    Raises:
        WireError: A field is missing, too many, or of another type.
    """
    if set(document) != RESERVATION_FIELDS:
        wrong = ", ".join(sorted(set(document) ^ RESERVATION_FIELDS))
        raise WireError(f"fields are missing or too many: {wrong}")
    texts = {name: _text(document, name) for name in (*_TEXTS, "created_at")}
    numbers = {name: _number(name, document[name], least) for name, least in _NUMBERS.items()}
    to_delete = document["to_delete"]
    if not isinstance(to_delete, bool):
        raise WireError("to_delete: must be true or false")
    try:
        created = parse_time(texts["created_at"])
        data = canonical_json(document["data"])
    except ValueError as error:
        raise WireError(str(error)) from None
    return Reservation(
        id=texts["id"],
        node_id=texts["host_id"],
        user_id=texts["user_id"],
        type=texts["type"],
        reference=texts["reference"],
        data=data,
        created=created,
        duration_ns=numbers["duration_ns"] or NEVER_NS,
        to_delete=to_delete,
        version=numbers["version"],
        attempt=numbers["attempt"],
        seq=numbers["seq"],
        fence_epoch=numbers["fence_epoch"],
        resources=_resources(document["resources"]),
    )


def document_of(reservation: Reservation) -> dict[str, object]:
    """Return the document to sign of a reservation.

    Raises:
        SigningError: Its data have no canonical form.
    """
    never = reservation.duration_ns >= NEVER_NS
    return {
        "id": reservation.id,
        "host_id": reservation.node_id,
        "user_id": reservation.user_id,
        "type": reservation.type,
        "data": parse_json(reservation.data or b"null"),
        "resources": dict(reservation.resources),
        "created_at": format_time(reservation.created),
        "duration_ns": 0 if never else reservation.duration_ns,
        "reference": reservation.reference,
        "to_delete": reservation.to_delete,
        "version": reservation.version,
        "attempt": reservation.attempt,
        "seq": reservation.seq,
        "fence_epoch": reservation.fence_epoch,
    }


def result_document(reservation: Reservation, result: Result) -> dict[str, object]:
    """Return the document to sign of what became of a reservation.

    Raises:
        SigningError: The result's data have no canonical form.
    """
    return {
        "reservation_id": reservation.id,
        "host_id": reservation.node_id,
        "attempt": reservation.attempt,
        "fence_epoch": reservation.fence_epoch,
        "type": reservation.type,
        "state": result.state.value,
        "error": result.message,
        "data": parse_json(result.data or b"null"),
        "finished_at": format_time(result.created),
    }


def digest_of(reservation: Reservation) -> str:
    """Return what is the same as long as the same is asked for.

    Number, epoch and whether to delete may change without that anything else is asked.
    """
    asked = (
        reservation.id,
        reservation.node_id,
        reservation.user_id,
        reservation.type,
        reservation.reference,
        format_time(reservation.created),
        reservation.duration_ns,
        reservation.version,
        sorted(reservation.resources.items()),
    )
    return hashlib.sha256(repr(asked).encode() + b"\n" + reservation.data).hexdigest()


def _text(document: Mapping[str, object], name: str) -> str:
    value = document[name]
    if not isinstance(value, str) or "\0" in value:
        raise WireError(f"{name}: must be a text")
    return value


def _number(name: str, value: object, least: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value < 2**63:
        raise WireError(f"{name}: must be an integer from {least}, of 63 bits at most")
    return value


def _resources(value: object) -> dict[str, int]:
    if not isinstance(value, dict):
        raise WireError("resources: must be an object")
    return {str(name): _number(f"resources.{name}", amount, 0) for name, amount in value.items()}
