"""Keeping in a process what rows say, and reading it again when one of them changed.

The fingerprint holds :data:`ROWS_MARK` of each table. A plain sum of ``changed_xid`` would not do:
a transaction that began early and commits late can overwrite rows of younger ones with its own
lower number, and bring the sum back to what it was. A transaction that has already written reads
anew and keeps nothing, so that a rollback never leaves its rows behind.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from django.db import connection

ROWS_MARK = "count(*) || '/' || coalesce(sum(hashint8extended(id, changed_xid)), 0)"
"""SQL expression over a table's rows whose text changes whenever one of them does."""

_Loaded = TypeVar("_Loaded")


class ProcessCache(Generic[_Loaded]):
    """Keeps what ``load`` returned while the rows behind it stay as they are; safe for threads.

    Args:
        fingerprint_sql: A query for one row: whether this transaction has written, whether the
            rows are ready, and anything that changes with them.
        load: Reads the rows.
    """

    def __init__(self, fingerprint_sql: str, load: Callable[[], _Loaded]) -> None:
        self._fingerprint_sql = fingerprint_sql
        self._load = load
        self._lock = threading.Lock()
        self._kept: tuple[tuple[object, ...], _Loaded] | None = None

    def fingerprint(self) -> tuple[bool, bool, tuple[object, ...]]:
        """Return whether this transaction has written, the rows are ready, and what they are."""
        with connection.cursor() as cursor:
            cursor.execute(self._fingerprint_sql)
            row = cursor.fetchone()
        assert row is not None  # noqa: S101 - a SELECT without FROM returns one row
        has_written, is_ready, *rest = row
        return bool(has_written), bool(is_ready), tuple(rest)

    def current(self) -> _Loaded | None:
        """Return what the rows say now, or None when they are not ready."""
        with self._lock:
            has_written, is_ready, fingerprint = self.fingerprint()
            if not is_ready:
                return None
            if has_written:
                return self._load()
            if self._kept is None or self._kept[0] != fingerprint:
                self._kept = (fingerprint, self._load())
            return self._kept[1]
