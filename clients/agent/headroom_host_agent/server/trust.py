"""Which keys of the server an agent trusts (spec hosts, D.4)."""

from __future__ import annotations

import base64
import binascii
import logging
from collections.abc import Iterable, Mapping

from headroom_host_agent.provision.documents import reservation_from_document
from headroom_host_agent.provision.signing.keys import KEY_BYTES, SigningError, key_id, verify
from headroom_host_agent.provision.signing.v2 import reservation_bytes, server_key_bytes, unseal
from headroom_host_agent.provision.wire import Reservation

log = logging.getLogger(__name__)


class UntrustedKeyError(SigningError):
    """A key signed that is not trusted, or not yet: the next heartbeat may tell of it."""


def trusted_keys(known: Mapping[str, str], told: object) -> dict[str, str]:
    """Return name -> key of what may be trusted from now on.

    The first keys are taken as they are told: the enrolment was asked of whom the certificate
    names. Later ones need the signature of one that is trusted. Those that are not told any more
    are done with.
    """
    found = {kid: (key, by) for kid, key, by in _told(told)}
    if not found:
        return dict(known)
    if not known:
        return {kid: key for kid, (key, _) in found.items()}
    trusted = {kid: key for kid, (key, _) in found.items() if known.get(kid) == key}
    waiting = {kid: one for kid, one in found.items() if kid not in trusted}
    judges = dict(known)
    while vouched := [kid for kid, (key, by) in waiting.items() if _is_vouched(key, by, judges)]:
        for kid in vouched:
            trusted[kid] = judges[kid] = waiting.pop(kid)[0]
    if waiting:
        names = ", ".join(sorted(waiting))
        log.error("keys of the server that no trusted key signed are not trusted: %s", names)
    return trusted or dict(known)


def verified_reservation(sent: object, keys: Mapping[str, str]) -> Reservation:
    """Return the reservation of a sealed document that a trusted key of the server signed.

    Raises:
        UntrustedKeyError: The key that signed it is not trusted.
        SigningError: It is malformed, or the signature does not hold.
        WireError: A field is missing, too many, or of another type.
    """
    sealed = unseal(sent)
    key = keys.get(sealed.kid)
    if key is None:
        raise UntrustedKeyError(f"the key {sealed.kid} is not trusted")
    if not verify(base64.b64decode(key), sealed.signature, reservation_bytes(sealed.document)):
        raise SigningError("the signature does not hold")
    return reservation_from_document(sealed.document)


def _told(told: object) -> Iterable[tuple[str, str, tuple[str, bytes]]]:
    """Yield name, key, and who signed it how; what is malformed is left out."""
    for one in told if isinstance(told, list) else []:
        fields = one if isinstance(one, dict) else {}
        kid, key = str(fields.get("kid", "")), str(fields.get("key", ""))
        try:
            decoded = base64.b64decode(key, validate=True)
            signature = base64.b64decode(str(fields.get("signature", "")), validate=True)
        except (binascii.Error, ValueError):
            continue
        if len(decoded) == KEY_BYTES and key_id(decoded) == kid:
            yield kid, key, (str(fields.get("signed_by", "")), signature)


def _is_vouched(key: str, by: tuple[str, bytes], judges: Mapping[str, str]) -> bool:
    signer, signature = by
    if signer not in judges:
        return False
    try:
        signed = server_key_bytes(base64.b64decode(key))
        return verify(base64.b64decode(judges[signer]), signature, signed)
    except SigningError:
        return False
