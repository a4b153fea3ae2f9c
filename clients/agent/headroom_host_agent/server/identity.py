"""Who this agent is: a key of its own, whatever the host is called (spec hosts, D.4)."""

from __future__ import annotations

import json
import os
import secrets
import threading
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from headroom_host_agent.files import replace_file
from headroom_host_agent.provision.signing.keys import KEY_BYTES
from headroom_host_agent.server.trust import trusted_keys

FILE = "identity.json"  # in the data folder


class IdentityError(Exception):
    """The identity cannot be read or written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """What an agent is known by.

    Attributes:
        seed: Of the private key, in hexadecimal.
        host_id: What the server calls the host; empty until it is enrolled.
        server_keys: Name -> public key in base64, of the server's that are trusted.
    """

    seed: str
    host_id: str = ""
    kid: str = ""
    fence_epoch: int = 0
    server_keys: Mapping[str, str] = field(default_factory=dict)

    @property
    def seed_bytes(self) -> bytes:
        """The private key's 32 bytes."""
        return bytes.fromhex(self.seed)

    @property
    def public_key(self) -> bytes:
        """The public key's 32 bytes."""
        key = Ed25519PrivateKey.from_private_bytes(self.seed_bytes)
        return key.public_key().public_bytes_raw()

    @property
    def is_enrolled(self) -> bool:
        """Whether the server knows it."""
        return self.host_id != ""


def new_identity() -> Identity:
    """Return an identity with a fresh key."""
    return Identity(seed=secrets.token_hex(KEY_BYTES))


def load_identity(folder: Path, *, file: str = FILE) -> Identity | None:
    """Return the identity in a data folder, None without one.

    Raises:
        IdentityError: The file cannot be read, others may read it, or it is none.
    """
    path = folder / file
    try:
        with path.open(encoding="utf-8") as opened:
            mode = os.fstat(opened.fileno()).st_mode & 0o077
            identity = Identity(**json.load(opened))
            seed = identity.seed_bytes
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError) as error:
        raise IdentityError(f"{path} cannot be read: {type(error).__name__}") from None
    if mode:
        raise IdentityError(f"{path} can be read by others than its owner")
    if len(seed) != KEY_BYTES:
        raise IdentityError(f"{path} holds no key")
    return identity


def save_identity(folder: Path, identity: Identity, *, file: str = FILE) -> None:
    """Replace the file at once; readable to its owner alone.

    Raises:
        IdentityError: It cannot be written.
    """
    try:
        replace_file(folder / file, json.dumps(asdict(identity)))
    except OSError as error:
        raise IdentityError(f"{folder / file} cannot be written: {error.strerror}") from None


class Enrolled:
    """The identity of a running agent, whose epoch may change; safe to use from threads.

    Args:
        before_epoch: Called before a new epoch is kept, so that a kill between forgets nothing.
    """

    def __init__(
        self, folder: Path, identity: Identity, *, before_epoch: Callable[[], None] = lambda: None
    ) -> None:
        self._folder, self._identity = folder, identity
        self._before_epoch = before_epoch
        self._lock = threading.Lock()

    @property
    def identity(self) -> Identity:
        """As it is now."""
        with self._lock:
            return self._identity

    def enter_epoch(self, epoch: int) -> None:
        """Go on with a new epoch, which is kept first; an older one changes nothing.

        Raises:
            IdentityError: It cannot be kept.
        """
        with self._lock:
            if epoch > self._identity.fence_epoch:
                self._before_epoch()
                self._keep(replace(self._identity, fence_epoch=epoch))

    def trust(self, told: object) -> None:
        """Trust the keys that a heartbeat told, if one that is trusted vouches for them.

        Raises:
            IdentityError: They cannot be kept.
        """
        with self._lock:
            keys = trusted_keys(self._identity.server_keys, told)
            if keys != self._identity.server_keys:
                self._keep(replace(self._identity, server_keys=keys))

    def take_key(self, following: Identity) -> None:
        """Go on with another key of the same host, which is kept first.

        Raises:
            IdentityError: It cannot be kept.
        """
        with self._lock:
            self._keep(replace(self._identity, seed=following.seed, kid=following.kid))

    def _keep(self, identity: Identity) -> None:
        save_identity(self._folder, identity)
        self._identity = identity
