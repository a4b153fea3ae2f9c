"""The keys that the server signs with: made once, sealed in the database (spec hosts, D.4).

A private part is encrypted with a key that is made of ``HEADROOM_SECRET_KEY``: who reads the
database or a dump of it cannot sign. It is in no log, no audit entry and no page.
"""

from __future__ import annotations

import base64
import secrets
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

import structlog
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from django.conf import settings
from django.db import transaction
from django.db.models import Q
from headroom_host_agent.provision.signing.keys import KEY_BYTES, key_id, sign
from headroom_host_agent.provision.signing.v2 import seal, server_key_bytes

from hosts.agents.models import KeyState, ServerKey
from journal.actors import Actor
from journal.clock import database_now
from journal.services import Change, record_changes

log = structlog.get_logger(__name__)
_NONCE_BYTES: Final = 12
_PURPOSE: Final = b"headroom/server-key-seal/v1"
#: A query for the keys of :func:`told_keys`, as one value for :func:`told_of`.
TOLD: Final = """
SELECT json_agg(json_build_array(
           kid, encode(public_key, 'hex'), signed_by, encode(signature, 'hex')) ORDER BY id DESC)
  FROM hosts_serverkey WHERE not_after IS NULL OR not_after > clock_timestamp()
"""
_SYSTEM: Final = Actor(name="system")


@dataclass(frozen=True, slots=True, kw_only=True)
class Signer:
    """A private key of the server with its name."""

    kid: str
    seed: bytes = field(repr=False)

    def sealed(self, document: dict[str, object], signed: bytes) -> dict[str, object]:
        """Return a document with our signature of ``signed``, its bytes."""
        return seal(document, kid=self.kid, signature=sign(self.seed, signed))


def signer() -> Signer:
    """Return the newest key that this process can read; the first one is made."""
    found = _readable(_told_rows(database_now()))
    if found is not None:
        return found
    with transaction.atomic():
        active = _locked_active()
        found = _readable([active] if active is not None else [])
        return found or _make(active, None, actor=_SYSTEM, request_id="")


def rotate_server_key(*, actor: Actor, request_id: str) -> str:
    """Sign with a new key from now on; return its name.

    The one before signs it, and is told to agents for ``key_retire_hours`` more.
    """
    with transaction.atomic():
        active = _locked_active()
        former = _readable(_told_rows(database_now()))
        return _make(active, former, actor=actor, request_id=request_id).kid


def told_keys(now: datetime) -> list[dict[str, str]]:
    """Return the public keys that agents may trust, the newest first.

    One that an older one signed says so: ``signed_by`` and ``signature``.
    """
    rows = _told_rows(now)
    if not rows:
        signer()
        rows = _told_rows(now)
    return [
        _told(row.kid, bytes(row.public_key), row.signed_by, bytes(row.signature)) for row in rows
    ]


def told_of(found: list[list[str]] | None) -> list[dict[str, str]]:
    """Return what ``TOLD`` found as :func:`told_keys` does; nothing before there is a key."""
    return [
        _told(kid, bytes.fromhex(public_key), signed_by, bytes.fromhex(signature))
        for kid, public_key, signed_by, signature in found or []
    ]


def _told(kid: str, public_key: bytes, signed_by: str, signature: bytes) -> dict[str, str]:
    told = {"kid": kid, "key": base64.b64encode(public_key).decode()}
    if signed_by:
        told["signed_by"] = signed_by
        told["signature"] = base64.b64encode(signature).decode()
    return told


def _told_rows(now: datetime) -> list[ServerKey]:
    return list(ServerKey.objects.filter(Q(not_after__isnull=True) | Q(not_after__gt=now)))


def _readable(rows: Iterable[ServerKey]) -> Signer | None:
    for row in rows:
        sealed = bytes(row.sealed_seed)
        try:
            seed = AESGCM(_sealing_key()).decrypt(
                sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], row.kid.encode()
            )
        except (InvalidTag, ValueError):
            log.warning("server_key_unreadable", kid=row.kid)
            continue
        return Signer(kid=row.kid, seed=seed)
    return None


def _locked_active() -> ServerKey | None:
    return ServerKey.objects.select_for_update().filter(state=KeyState.ACTIVE).first()


def _make(
    retired: ServerKey | None, former: Signer | None, *, actor: Actor, request_id: str
) -> Signer:
    """Make a key the active one; of two that are made at once the first is taken by both.

    Args:
        retired: The active one, locked.
        former: Who vouches for the new one.
    """
    seed = secrets.token_bytes(KEY_BYTES)
    public_key = Ed25519PrivateKey.from_private_bytes(seed).public_key().public_bytes_raw()
    kid = key_id(public_key)
    nonce = secrets.token_bytes(_NONCE_BYTES)
    if retired is not None:
        until = database_now() + timedelta(hours=settings.HEADROOM.agents.key_retire_hours)
        retired.state, retired.not_after = KeyState.RETIRING, until
        retired.save(update_fields=["state", "not_after"])
    row = ServerKey(
        kid=kid,
        public_key=public_key,
        sealed_seed=nonce + AESGCM(_sealing_key()).encrypt(nonce, seed, kid.encode()),
        signed_by="" if former is None else former.kid,
        signature=b"" if former is None else sign(former.seed, server_key_bytes(public_key)),
    )
    ServerKey.objects.bulk_create([row], ignore_conflicts=True)
    taken = ServerKey.objects.get(state=KeyState.ACTIVE)
    if taken.kid != kid:
        found = _readable([taken])
        return found or _make(_locked_active(), former, actor=actor, request_id=request_id)
    change = Change(
        action="server_key_made",
        object_type="server_key",
        object_id=kid,
        before={"kid": retired.kid} if retired is not None else {},
        after={"kid": kid, "signed_by": row.signed_by},
    )
    record_changes([change], actor=actor, request_id=request_id)
    return Signer(kid=kid, seed=seed)


def _sealing_key() -> bytes:
    derivation = HKDF(algorithm=SHA256(), length=KEY_BYTES, salt=None, info=_PURPOSE)
    return derivation.derive(settings.SECRET_KEY.encode())
