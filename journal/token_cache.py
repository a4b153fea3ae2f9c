"""Remembering who a token belongs to, for a while (spec placement, 7.2; spec liquid, 3)."""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

Entry = TypeVar("Entry")


@dataclass(frozen=True, slots=True)
class _Kept(Generic[Entry]):
    entry: Entry
    until: float


class TokenCache(Generic[Entry]):
    """A bounded map from tokens to what is known of them; it never holds a token itself.

    The oldest used entry goes when it is full. Threads may share it.

    Args:
        most_entries: Bound of its size; 0 keeps nothing.
        clock: Seconds since the epoch.
    """

    def __init__(self, most_entries: int, clock: Callable[[], float]) -> None:
        self._most_entries = most_entries
        self._clock = clock
        self._lock = threading.Lock()
        self._kept: OrderedDict[bytes, _Kept[Entry]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, key: bytes) -> Entry | None:
        """Return what is known of a key, or None when that is nothing or too old."""
        with self._lock:
            kept = self._kept.get(key)
            if kept is None:
                return None
            if kept.until <= self._clock():
                del self._kept[key]
                return None
            self._kept.move_to_end(key)
            return kept.entry

    def put(self, key: bytes, entry: Entry, until: float) -> None:
        """Keep an entry until a moment, in seconds since the epoch."""
        if until <= self._clock() or self._most_entries < 1:
            return
        with self._lock:
            self._kept[key] = _Kept(entry, until)
            self._kept.move_to_end(key)
            while len(self._kept) > self._most_entries:
                self._kept.popitem(last=False)


def cache_key(*tokens: str) -> bytes:
    """Return a key that tells nothing about the tokens it stands for."""
    digest = hashlib.sha256()
    for token in tokens:
        digest.update(hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest())
    return digest.digest()
