"""Ed25519 keys and signatures, and what may be wrong with them."""

from __future__ import annotations

import base64
import hashlib

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

KEY_BYTES = 32
_KID_BYTES = 12


class SigningError(ValueError):
    """A key or a document can be neither signed nor verified."""


def sign(seed: bytes, signed: bytes) -> bytes:
    """Return the 64 bytes of a signature by the private key of a seed of 32 bytes.

    Raises:
        SigningError: The seed has another size.
    """
    if len(seed) != KEY_BYTES:
        raise SigningError(f"a private key has {KEY_BYTES} bytes, this one {len(seed)}")
    return Ed25519PrivateKey.from_private_bytes(seed).sign(signed)


def verify(public_key: bytes, signature: bytes, signed: bytes) -> bool:
    """Return whether a signature holds.

    Raises:
        SigningError: The key has another size than 32 bytes, or is none.
    """
    if len(public_key) != KEY_BYTES:
        raise SigningError(f"a public key has {KEY_BYTES} bytes, this one {len(public_key)}")
    try:
        Ed25519PublicKey.from_public_bytes(public_key).verify(signature, signed)
    except InvalidSignature:
        return False
    except ValueError as error:
        raise SigningError(f"no public key: {error}") from None
    return True


def key_id(public_key: bytes) -> str:
    """Return the short name of a public key."""
    digest = hashlib.sha256(public_key).digest()[:_KID_BYTES]
    return base64.urlsafe_b64encode(digest).decode().rstrip("=")
