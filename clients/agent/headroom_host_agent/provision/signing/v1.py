"""Signatures of the reference's engine, to read what it left (spec hosts, B.2).

They bind too little: neither id nor host nor time of a result. Nothing new is signed so.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable

from headroom_host_agent.provision import base58
from headroom_host_agent.provision.signing.keys import SigningError, sign, verify
from headroom_host_agent.provision.wire import Reservation, Result, state_number


def reservation_bytes(reservation: Reservation) -> bytes:
    """Return what a reservation's owner signs: host, user and type, then the data."""
    head = reservation.node_id + reservation.user_id + reservation.type
    return head.encode() + reservation.data


def sign_reservation(seed: bytes, reservation: Reservation) -> bytes:
    """Return the owner's signature.

    Raises:
        SigningError: The seed is none.
    """
    return sign(seed, reservation_bytes(reservation))


def verify_reservation(reservation: Reservation) -> bool:
    """Return whether the owner signed this; the user's id is the key in base58.

    Raises:
        SigningError: The user's id is no key.
    """
    try:
        key = base58.decode(reservation.user_id)
    except ValueError as error:
        raise SigningError(f"the user's id is no key: {error}") from None
    return verify(key, reservation.signature, reservation_bytes(reservation))


def result_bytes(result: Result) -> bytes:
    """Return what a host signs: a byte for the state, the message, the data."""
    return bytes([state_number(result.state)]) + result.message.encode() + result.data


def sign_result(seed: bytes, result: Result) -> bytes:
    """Return the host's signature.

    Raises:
        SigningError: The seed is none.
    """
    return sign(seed, result_bytes(result))


def verify_result(public_key: bytes, result: Result) -> bool:
    """Return whether the host of a key signed this outcome, of whatever workload.

    Raises:
        SigningError: It is no key.
    """
    return verify(public_key, result.signature, result_bytes(result))


def owner_digest(parts: Iterable[object]) -> bytes:
    """Return the SHA-256 that an owner signs: parts as text, one after the other.

    Args:
        parts: Workload, host, pool, reference, customer, type in capitals, creation in Unix
            seconds, description, metadata, then those of the type.
    """
    return hashlib.sha256("".join(str(part) for part in parts).encode()).digest()


def has_quorum(signers: Iterable[int], *, listed: Collection[int], least: int) -> bool:
    """Return whether enough of the listed signed; each counts once, others not at all."""
    return len(set(signers) & set(listed)) >= least
