"""Sets of numbers as rows of bits: bulk operations behind the engine (spec failover, 17.5)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Int64Column = NDArray[np.int64]
BitRows = NDArray[np.uint8]
"""uint8[rows, bytes], bit ``n`` of a row is bit ``n % 8`` of byte ``n // 8``."""


BYTES_AT_ONCE = 32


def bit_rows(rows: int, bits: int, row: Int64Column, bit: Int64Column) -> BitRows:
    """Return rows with the given bits set.

    Args:
        rows: How many rows.
        bits: How many bits in a row.
        row: int64[K], where to set.
        bit: int64[K], what to set.
    """
    width = (bits + 7) >> 3
    packed = np.zeros(rows * width, dtype=np.uint8)
    np.bitwise_or.at(packed, row * width + (bit >> 3), np.uint8(1) << (bit & 7).astype(np.uint8))
    return packed.reshape(rows, width)


def grouped_or(source: BitRows, take: Int64Column, group: Int64Column, groups: int) -> BitRows:
    """Return for each group the union of some rows; empty for a group without any.

    Args:
        source: Rows to take.
        take: int64[K], which rows.
        group: int64[K], for which group.
        groups: How many groups.
    """
    united = np.zeros((groups, source.shape[1]), dtype=np.uint8)
    if not len(take) or not source.shape[1]:
        return united
    order = np.argsort(group, kind="stable")
    take, group = take[order], group[order]
    starts = np.flatnonzero(np.r_[True, group[1:] != group[:-1]])
    counts = np.diff(np.r_[starts, len(take)])
    # The first rows of all groups, then the second ones, and so on: groups are small and many.
    for place in range(int(counts.max())):
        chosen = starts[counts > place]
        united[group[chosen]] |= source[take[chosen + place]]
    return united


def transposed_bits(rows: BitRows, bits: int) -> BitRows:
    """Return rows and bits exchanged: row ``b`` of the result has bit ``r`` if row ``r`` had ``b``.

    Args:
        rows: uint8[rows, bytes].
        bits: How many bits of each row count.
    """
    turned = np.zeros((bits, (rows.shape[0] + 7) >> 3), dtype=np.uint8)
    for byte in range(0, rows.shape[1], BYTES_AT_ONCE):
        part = rows[:, byte : byte + BYTES_AT_ONCE]
        packed = np.packbits(
            np.unpackbits(part, axis=1, bitorder="little"), axis=0, bitorder="little"
        ).T
        low = byte * 8
        turned[low : low + len(packed)] = packed[: bits - low]
    return turned


def rows_as_ints(rows: BitRows) -> list[int]:
    """Return each row as one integer."""
    found = [0] * len(rows)
    for row in np.flatnonzero(rows.any(axis=1)).tolist():
        found[row] = int.from_bytes(rows[row].tobytes(), "little")
    return found


def bits_as_rows(bits: int) -> Int64Column:
    """Return int64[K], the numbers of the bits that are set, ascending."""
    packed = np.frombuffer(bits.to_bytes((bits.bit_length() + 7) >> 3, "little"), dtype=np.uint8)
    return np.flatnonzero(np.unpackbits(packed, bitorder="little"))


def bits_as_mask(bits: int, count: int) -> NDArray[np.bool_]:
    """Return the first ``count`` bits as bool[count]."""
    packed = np.frombuffer(bits.to_bytes((count + 7) >> 3, "little"), dtype=np.uint8)
    return np.unpackbits(packed, count=count, bitorder="little").view(np.bool_)
