"""Keeping in a process what rows say, and reading it again when one of them changed.

The same rows may bear the same numbers in another history of the database and say something else,
so what is kept is of one history (:mod:`journal.history`).

The fingerprint holds :data:`core.changes.ROWS_MARK` of each table. A transaction that has already
written reads anew and keeps nothing, so that a rollback never leaves its rows behind. Nor is
anything kept that changed while it was read: a transaction that sees an older state would take it
for that one. What a standby tells is read each time and not kept.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from journal.history import MOMENT, Moment, is_continued, moment_of
from journal.standby.asking import is_reading_standby
from journal.statements import fetch_row

_Loaded = TypeVar("_Loaded")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fingerprint:
    """What rows are at a moment.

    Attributes:
        moment: When they were asked for.
        is_ready: Whether they can be used.
        mark: Another than this when one of the rows is another.
    """

    moment: Moment
    is_ready: bool
    mark: str


@dataclass(frozen=True, slots=True)
class _Kept(Generic[_Loaded]):
    fingerprint: Fingerprint
    loaded: _Loaded


class ProcessCache(Generic[_Loaded]):
    """Keeps what ``load`` returned while the rows behind it stay as they are; safe for threads.

    Args:
        fingerprint_sql: A query for one row of two: whether the rows are ready, and a text that
            changes with them.
        load: Reads the rows.
        reader: What is kept, one of :data:`journal.counters.READERS`.
    """

    def __init__(self, fingerprint_sql: str, load: Callable[[], _Loaded], *, reader: str) -> None:
        self.fingerprint_sql = fingerprint_sql
        self._load = load
        self._reader = reader
        self._lock = threading.Lock()
        self._kept: _Kept[_Loaded] | None = None

    def fingerprint(self) -> Fingerprint:
        """Return what the rows are."""
        (now,) = read_fingerprints(self)
        return now

    def current(self, asked: Fingerprint | None = None) -> _Loaded | None:
        """Return what the rows say now, or None when they are not ready.

        Args:
            asked: What :func:`read_fingerprints` just said of the rows; they are asked once more
                only if it is another than that of what is kept.
        """
        return self._read_there() if is_reading_standby() else self._current(asked)

    def _current(self, asked: Fingerprint | None) -> _Loaded | None:
        if asked is not None:
            if not asked.is_ready:
                return None
            kept = self._kept
            if kept is not None and _is_same(kept.fingerprint, asked):
                return kept.loaded
        with self._lock:
            now, kept = self.fingerprint(), self._kept
            if not now.is_ready:
                return None
            if now.moment.has_written:
                return self._load()
            if kept is not None and self._is_good(kept.fingerprint, now):
                return kept.loaded
            loaded = self._load()
            if self._is_good(now, self.fingerprint()):
                self._kept = _Kept(now, loaded)
            return loaded

    def _read_there(self) -> _Loaded | None:
        is_ready, _ = fetch_row(f"SELECT now.* FROM ({self.fingerprint_sql}) AS now")  # noqa: S608 - ours
        return self._load() if is_ready else None

    def _is_good(self, known: Fingerprint, now: Fingerprint) -> bool:
        is_continued_here = is_continued(known.moment, now.moment, reader=self._reader)
        return is_continued_here and known.mark == now.mark


def read_fingerprints(*caches: ProcessCache[Any]) -> Sequence[Fingerprint]:  # Any: whatever is kept
    """Return what the rows behind some caches are, one fingerprint for each, in one statement."""
    parts = [f"({cache.fingerprint_sql}) AS now{n}" for n, cache in enumerate(caches)]
    columns = ", ".join(f"now{n}.*" for n in range(len(caches)))
    row = fetch_row(f"SELECT {MOMENT}, {columns} FROM {', '.join(parts)}")  # noqa: S608 - our own text
    return fingerprints_of(moment_of(row[0]), zip(row[1::2], row[2::2], strict=True))


def fingerprint_rows(caches: Sequence[ProcessCache[Any]]) -> Sequence[str]:  # Any: whatever is kept
    """Return queries for the rows of some caches, for a statement that asks for more.

    Each has one row: ``kept``, the number of the cache, whether it is ready, and the mark.
    """
    return [
        f"SELECT 'kept', {n}::bigint, now.is_ready::integer::bigint, now.mark "  # noqa: S608 - ours
        f"FROM ({cache.fingerprint_sql}) AS now(is_ready, mark)"
        for n, cache in enumerate(caches)
    ]


def fingerprints_of(moment: Moment, rows: Iterable[tuple[object, str]]) -> Sequence[Fingerprint]:
    """Return the fingerprints that a statement told, by whether they are ready and their marks."""
    return [
        Fingerprint(moment=moment, is_ready=bool(is_ready), mark=mark) for is_ready, mark in rows
    ]


def _is_same(known: Fingerprint, now: Fingerprint) -> bool:
    """Return whether rows are certainly as they were; a doubt is not looked into here."""
    before, after = known.moment, now.moment
    is_later = after.history == before.history and after.wal_bytes >= before.wal_bytes
    return is_later and not after.has_written and known.mark == now.mark
