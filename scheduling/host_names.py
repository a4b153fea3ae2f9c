"""Host names of a request as columns of eight bytes each, found in a table without making texts.

Nova lists all hosts it might take at every call, each time in another order. To make 10,000 texts
of them and look each up in a dictionary takes 3 to 9 ms of CPU, mostly spent waiting for memory;
read from where they stand and compared in columns they take 0.5 ms.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import overload

import numpy as np

from scheduling.columns import FloatColumn, Int64Column, UInt64Column

MOST_NAME_BYTES = 256
"""Of a name in columns: one that is longer would make those of all others wide."""
_WORD_BYTES = 8
_NO_HOST = b"\xff"  # in no text of ASCII
_MASKS: UInt64Column = np.array([(1 << (8 * count)) - 1 for count in range(9)], dtype=np.uint64)
_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)
_HALF = np.uint64(32)
_SLOTS_PER_NAME_BITS = 4  # of a hundred names two are looked up a second time


class WordsOfText:
    """A text of which eight bytes can be read from any place."""

    def __init__(self, text: bytes) -> None:
        self.text = text + bytes(MOST_NAME_BYTES)
        count = len(self.text) - _WORD_BYTES + 1
        self._words = np.ndarray((count,), dtype="<u8", buffer=self.text, strides=(1,))

    def says(self, places: Int64Column, part: bytes) -> bool:
        """Return whether a part stands at each of some places."""
        for begin in range(0, len(part), _WORD_BYTES):
            word = part[begin : begin + _WORD_BYTES]
            read = self._words[places + begin] & _MASKS[len(word)]
            if not bool((read == int.from_bytes(word, "little")).all()):
                return False
        return True

    def between(self, begins: Int64Column, ends: Int64Column) -> UInt64Column:
        """Return uint64[W, N], the bytes between two places as words, zero after the last."""
        lengths = ends - begins
        width = -(-int(lengths.max(initial=0)) // _WORD_BYTES)
        words = np.empty((width, len(begins)), dtype=np.uint64)
        for number in range(width):
            left = np.clip(lengths - number * _WORD_BYTES, 0, _WORD_BYTES)
            words[number] = self._words[begins + number * _WORD_BYTES] & _MASKS[left]
        return words


class HostNames(Sequence[str]):
    """Names that stand in a text of ASCII without zero bytes; texts are made when asked for."""

    def __init__(self, text: WordsOfText, begins: Int64Column, ends: Int64Column) -> None:
        """Take the names between some places, each of at most ``MOST_NAME_BYTES``."""
        self._text = text.text
        self._begins, self._ends = begins, ends
        self.words = text.between(begins, ends)
        self._names: tuple[str, ...] | None = None

    def __len__(self) -> int:
        return len(self._begins)

    @overload
    def __getitem__(self, place: int) -> str: ...
    @overload
    def __getitem__(self, place: slice) -> tuple[str, ...]: ...
    def __getitem__(self, place: int | slice) -> str | tuple[str, ...]:
        if isinstance(place, slice):
            return self._all()[place]
        return self._text[self._begins[place] : self._ends[place]].decode("ascii")

    def __iter__(self) -> Iterator[str]:
        return iter(self._all())

    def __contains__(self, name: object) -> bool:
        if not isinstance(name, str) or "\0" in name:
            return False
        width = len(self.words) * _WORD_BYTES
        letters = name.encode("utf-8", "surrogatepass").ljust(width, b"\0")
        if len(letters) > width:
            return False
        wanted = np.frombuffer(letters, dtype="<u8").reshape(-1, 1)
        return bool((self.words == wanted).all(axis=0).any())

    def __eq__(self, other: object) -> bool:
        if isinstance(other, HostNames):
            return np.array_equal(self.words, other.words)
        return isinstance(other, tuple) and self._all() == other

    def __hash__(self) -> int:
        return hash(self._all())

    def _all(self) -> tuple[str, ...]:
        if self._names is None:
            text = self._text.decode("ascii")
            places = map(slice, self._begins.tolist(), self._ends.tolist())
            self._names = tuple(map(text.__getitem__, places))
        return self._names


class HostWeights(Mapping[str, float]):
    """A weight for each of some names, in their order.

    Attributes:
        column: float64[N], their weights.
    """

    def __init__(self, names: HostNames, column: FloatColumn) -> None:
        self.names = names
        self.column = column

    def __len__(self) -> int:
        return len(self.names)

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __contains__(self, name: object) -> bool:
        return name in self.names

    def __getitem__(self, name: str) -> float:
        try:
            return float(self.column[self.names.index(name)])
        except ValueError:
            raise KeyError(name) from None


class NameIndex:
    """Rows by the words of names: each word of 64 bits is compared, so that nothing is guessed.

    A name whose slot another one has taken is looked up in a second, smaller set of slots.
    """

    def __init__(self, names: Sequence[str]) -> None:
        encoded = [name.encode("utf-8", "surrogatepass") for name in names]
        encoded = [
            _NO_HOST if len(code) > MOST_NAME_BYTES or b"\0" in code else code for code in encoded
        ]
        places = np.array([0, *accumulate(map(len, encoded))], dtype=np.int64)
        self._words = WordsOfText(b"".join(encoded)).between(places[:-1], places[1:])
        rows = np.arange(len(names), dtype=np.int64)
        first = _Slots(self._words, rows)
        self._slots = [first, _Slots(self._words, rows[first.rows_of(self._words) != rows])]

    def rows_of(self, names: HostNames) -> Int64Column:
        """Return int64[K], the row of each name, -1 if it has none or others have its slots."""
        rows: Int64Column = np.full(len(names), -1, dtype=np.int64)
        width, longer = len(self._words), names.words[len(self._words) :]
        left = np.flatnonzero(~longer.any(axis=0))  # what is longer than any is none of them
        words = names.words[:width, left]
        if len(words) < width:
            words = np.pad(words, ((0, width - len(words)), (0, 0)))
        for slots in self._slots if self._words.shape[1] else ():
            found = slots.rows_of(words)
            is_found = (self._words[:, found] == words).all(axis=0)
            rows[left[is_found]] = found[is_found]
            left, words = left[~is_found], words[:, ~is_found]
        return rows


class _Slots:
    """A row for each hash of words; of rows with the same hash the last."""

    def __init__(self, words: UInt64Column, rows: Int64Column) -> None:
        bits = len(rows).bit_length() + _SLOTS_PER_NAME_BITS
        self._shift = np.uint64(64 - bits)
        self._rows = np.zeros(1 << bits, dtype=np.int32)
        self._rows[self._hashes(words[:, rows])] = rows

    def rows_of(self, words: UInt64Column) -> Int64Column:
        """Return int64[K], the row in the slot of each; any row where a slot is empty."""
        return self._rows[self._hashes(words)].astype(np.int64)

    def _hashes(self, words: UInt64Column) -> UInt64Column:
        mixed = np.zeros(words.shape[1], dtype=np.uint64)
        for word in words:
            mixed = (mixed ^ word) * _MULTIPLIER
            mixed ^= mixed >> _HALF
        return (mixed * _MULTIPLIER) >> self._shift
