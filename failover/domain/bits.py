"""Sets of numbers as the bits of integers (spec failover, 17.5)."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

Int64Column = NDArray[np.int64]


def bits_of(numbers: Iterable[int]) -> int:
    """Return the integer whose bits are these."""
    wanted = tuple(numbers)
    packed = bytearray((max(wanted, default=0) >> 3) + 1)
    for number in wanted:
        packed[number >> 3] |= 1 << (number & 7)
    return int.from_bytes(packed, "little")


def mask_as_bits(mask: NDArray[np.bool_]) -> int:
    """Return the integer of which bit ``n`` is set where element ``n`` is true."""
    return int.from_bytes(np.packbits(mask, bitorder="little").tobytes(), "little")


def bits_as_rows(bits: int) -> Int64Column:
    """Return int64[K], the numbers of the bits that are set, ascending."""
    words = np.frombuffer(
        bits.to_bytes(((bits.bit_length() + 63) >> 6) << 3, "little"), dtype="<u8"
    )
    filled = np.flatnonzero(words)  # of many bits few may be set
    found = np.flatnonzero(np.unpackbits(words[filled].view(np.uint8), bitorder="little"))
    rows: Int64Column = (filled[found >> 6] << 6) + (found & 63)
    return rows


def bits_as_mask(bits: int, count: int) -> NDArray[np.bool_]:
    """Return the first ``count`` bits as bool[count]."""
    packed = np.frombuffer(bits.to_bytes((count + 7) >> 3, "little"), dtype=np.uint8)
    return np.unpackbits(packed, count=count, bitorder="little").view(np.bool_)
