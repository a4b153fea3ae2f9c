"""Names of reservations and of what they leave on a host (spec hosts, B.1, B.12)."""

from __future__ import annotations

import hashlib
import re

from headroom_host_agent.provision import base58

_NETWORK_LETTERS = 13


class IdError(ValueError):
    """A text names no reservation or workload."""


def split_id(identity: str) -> tuple[int, int]:
    """Return the numbers of ``<reservation>-<workload>``.

    Raises:
        IdError: There is no dash, or a part is no unsigned decimal.
    """
    parts = identity.split("-")
    if len(parts) != 2:  # noqa: PLR2004
        raise IdError(f"{identity!r}: wrong length, it must be <reservation>-<workload>")
    names = ("reservation", "workload")
    for name, part in zip(names, parts, strict=True):
        if not _is_unsigned(part):
            raise IdError(f"{identity!r}: the {name} is no unsigned decimal")
    return int(parts[0]), int(parts[1])


def filesystem_name(identity: str) -> str:
    """Return the name of a reservation's file system: its id."""
    return identity


def workload_id_from_filesystem(name: str) -> int:
    """Return the number before the first dash.

    Raises:
        IdError: There is none.
    """
    number = name.partition("-")[0]
    if not _is_unsigned(number):
        raise IdError(f"{name!r}: no number before the first dash")
    return int(number)


def network_id(user: str, name: str) -> str:
    """Return the id of a user's network.

    Nothing separates user and name, so ``11`` with ``tf`` and ``1`` with ``1tf`` have the same.
    """
    digest = hashlib.md5((user + name).encode(), usedforsecurity=False).digest()
    return base58.encode(digest)[:_NETWORK_LETTERS]


def _is_unsigned(text: str) -> bool:
    return bool(re.fullmatch(r"[0-9]{1,20}", text)) and int(text) < 2**64
