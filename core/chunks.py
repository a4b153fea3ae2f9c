"""Working through many rows a part at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

Row = TypeVar("Row")


def in_chunks(rows: Sequence[Row], size: int) -> Iterator[list[Row]]:
    """Yield all rows in lists of at most a size, in order."""
    for start in range(0, len(rows), size):
        yield list(rows[start : start + size])
