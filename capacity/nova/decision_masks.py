"""Removal masks of scheduling decisions as few bytes, and back (spec scheduling, 10.5, 14.2).

A decision over ``N`` hosts keeps one bit per host for who was a candidate and one for each step
that removed any, packed and compressed. A host is in at most one removal mask: that of the first
step that removed it.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

BoolColumn = npt.NDArray[np.bool_]

_COMPRESSION_LEVEL = 1  # masks are long runs: higher levels cost time and save little
_BITS_PER_BYTE = 8


class DamagedMasksError(ValueError):
    """Stored masks do not have the length that their listing asks for."""


def compress_masks(masks: Sequence[bytes]) -> bytes:
    """Return masks of equal length, eight hosts a byte, as compressed bytes in order."""
    return zlib.compress(b"".join(masks), _COMPRESSION_LEVEL)


def unpack_masks(packed: bytes, *, mask_count: int, host_count: int) -> tuple[BoolColumn, ...]:
    """Return the masks that :func:`compress_masks` packed.

    Args:
        packed: Stored bytes.
        mask_count: How many masks there are.
        host_count: Hosts of the listing.

    Raises:
        DamagedMasksError: the bytes hold something else.
    """
    try:
        bits = zlib.decompress(packed)
    except zlib.error as error:
        raise DamagedMasksError(str(error)) from error
    width = -(-host_count // _BITS_PER_BYTE)
    if len(bits) != width * mask_count:
        raise DamagedMasksError(f"{len(bits)} bytes of masks where {width * mask_count} are due")
    rows = np.frombuffer(bits, dtype=np.uint8).reshape(mask_count, width)
    return tuple(np.unpackbits(row, count=host_count).astype(np.bool_) for row in rows)


def pack_names(names: Sequence[str]) -> bytes:
    """Return host names as compressed lines in row order."""
    return zlib.compress("\n".join(names).encode())


def unpack_names(packed: bytes) -> tuple[str, ...]:
    """Return the names that :func:`pack_names` packed."""
    text = zlib.decompress(packed).decode()
    return tuple(text.split("\n")) if text else ()


def names_digest(names: Sequence[str]) -> str:
    """Return a text that is equal for equal lists of names only."""
    return hashlib.blake2b("\n".join(names).encode(), digest_size=32).hexdigest()
