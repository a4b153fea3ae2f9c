"""Many short texts as one: a column without an object for each of its rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, eq=False)
class TextColumn:
    """Texts by row. Never changed.

    Attributes:
        encoded: uint8[bytes], all of them in UTF-8, one after the other.
        starts: int64[N + 1], where each begins in it, and its length.
    """

    encoded: NDArray[np.uint8]
    starts: NDArray[np.int64]

    @classmethod
    def of(cls, texts: Iterable[str]) -> TextColumn:
        """Return a column of some texts."""
        parts = [text.encode() for text in texts]
        starts = np.zeros(len(parts) + 1, dtype=np.int64)
        np.cumsum(np.fromiter(map(len, parts), dtype=np.int64, count=len(parts)), out=starts[1:])
        return cls(np.frombuffer(b"".join(parts), dtype=np.uint8), starts)

    def __len__(self) -> int:
        """Return the number of texts."""
        return len(self.starts) - 1

    def __getitem__(self, row: int) -> str:
        """Return a text, of a row from 0."""
        starts = self.starts
        return str(self.encoded[starts.item(row) : starts.item(row + 1)].data, "utf-8")

    def __iter__(self) -> Iterator[str]:
        """Yield each text."""
        return iter(self.of_rows(np.arange(len(self))))

    def of_rows(self, rows: NDArray[np.integer]) -> list[str]:
        """Return the texts of some rows."""
        encoded = self.encoded
        bounds = zip(self.starts[rows].tolist(), self.starts[rows + 1].tolist(), strict=True)
        return [str(encoded[start:end].data, "utf-8") for start, end in bounds]

    def chosen(self, rows: NDArray[np.integer]) -> TextColumn:
        """Return a column of some rows, in their order."""
        lengths = self.starts[rows + 1] - self.starts[rows]
        starts = np.zeros(len(rows) + 1, dtype=np.int64)
        np.cumsum(lengths, out=starts[1:])
        places = np.arange(starts[-1]) + np.repeat(self.starts[rows] - starts[:-1], lengths)
        return TextColumn(self.encoded[places], starts)

    def joined(self, other: TextColumn) -> TextColumn:
        """Return a column of these texts and then those of another."""
        starts = np.concatenate((self.starts, other.starts[1:] + self.starts[-1]))
        return TextColumn(np.concatenate((self.encoded, other.encoded)), starts)
