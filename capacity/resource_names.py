"""Names that rows of this app have in Kubernetes (spec liquid, 13.1)."""

from __future__ import annotations

import re
from typing import Final

MAX_PREFIX: Final = 56
FNV_OFFSET: Final = 0x811C9DC5
FNV_PRIME: Final = 0x01000193
LOW_BITS: Final = 0xFFFFFF
_PLAIN = re.compile(r"[a-z0-9]([-a-z0-9.]{0,180}[a-z0-9])?")
_OTHER = re.compile(r"[^a-z0-9-]")


def group_capacity_resource_name(group: str, zone: str) -> str:
    """Return the name of a group's capacity in a zone: a DNS label of at most 63 characters.

    Lower-case ``<group>-<zone>`` with ``_``, ``.`` and whatever no label may hold replaced by
    ``-``, cut, then six hexadecimal digits that keep apart what the replacing made equal.

    Source: spec liquid, 13.1.
    """
    readable = _OTHER.sub("-", f"{group}-{zone}".lower())[:MAX_PREFIX].lstrip("-")
    raw = b"\0".join((group.encode(errors="surrogatepass"), zone.encode(errors="surrogatepass")))
    digits = f"{fnv1a_32(raw) & LOW_BITS:06x}"
    return f"{readable}-{digits}" if readable else digits


def host_resource_name(host: str) -> str:
    """Return the name of a host: its own where Kubernetes takes it, else a readable part of it.

    Two hosts that only differ in case are kept apart by hexadecimal digits.
    """
    if _PLAIN.fullmatch(host):
        return host
    readable = _OTHER.sub("-", host.lower())[:MAX_PREFIX].lstrip("-")
    digits = f"{fnv1a_32(host.encode(errors='surrogatepass')):08x}"
    return f"{readable}-{digits}" if readable else digits


def fnv1a_32(content: bytes) -> int:
    """Return the 32-bit FNV-1a hash of some bytes.

    Source: http://www.isthe.com/chongo/tech/comp/fnv/.
    """
    digest = FNV_OFFSET
    for octet in content:
        digest = ((digest ^ octet) * FNV_PRIME) & 0xFFFFFFFF
    return digest
