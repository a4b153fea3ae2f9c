"""The host table that a process keeps, and its comparison with one built anew."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import structlog
from django.conf import settings

from capacity.host_table.changes import read_changes
from capacity.host_table.differences import table_differences
from capacity.host_table.position import (
    Position,
    following,
    load_position,
    load_to_keep,
    newest_after,
)
from capacity.metrics import HOST_TABLE_CHECKS, HOST_TABLE_DIFFERENCES, HOST_TABLE_REFRESH_SECONDS
from core.changes import one_snapshot
from core.process_cache import Fingerprint, ProcessCache, read_fingerprints
from journal.history import read_moment
from journal.self_check import SelfCheck
from scheduling.table import HostTable

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class HostTableReading:
    """A host table and the state of the database that it shows.

    Attributes:
        table: Hosts and their side tables.
        snapshot: Text of the ``pg_snapshot`` of the reading: every transaction that it shows is in
            the table. Empty if the reading transaction has written itself, whose rows no snapshot
            tells from later ones.
        fingerprints: Of the caches that were asked for beside it, in their order.
    """

    table: HostTable
    snapshot: str
    fingerprints: Sequence[Fingerprint] = ()


class HostTableCache:
    """Keeps one :class:`HostTable` per process; safe for threads.

    Threads share the first load and otherwise never wait for each other: each brings the published
    table forward by itself and publishes its result unless another one did so first, in which case
    the next reader sees the missing changes again.
    """

    def __init__(self) -> None:
        self._loading = threading.RLock()
        self._publishing = threading.Lock()
        self._position: Position | None = None
        self._check = SelfCheck(
            "host-table-check",
            self.verify,
            every_seconds=lambda: settings.HEADROOM.scheduler.host_table_check_seconds,
        )

    def current(self) -> HostTable:
        """Return a table as of now, including the caller's own uncommitted writes.

        A transaction that has written gets a private copy, so that a rollback never leaves its
        rows in the shared table.
        """
        newest, _ = self._newest()
        return newest.table

    def reading(self, *beside: ProcessCache[Any]) -> HostTableReading:  # Any: whatever is kept
        """Return a table as of now and the snapshot that it was read at.

        Args:
            beside: Caches whose fingerprints come from the same statement.
        """
        newest, fingerprints = self._newest(*beside)
        moment = newest.moment
        return HostTableReading(
            table=newest.table,
            snapshot="" if moment.has_written else moment.snapshot,
            fingerprints=fingerprints,
        )

    def _newest(
        self,
        *beside: ProcessCache[Any],  # Any: whatever is kept
    ) -> tuple[Position, Sequence[Fingerprint]]:
        known = self._position
        if known is None:
            return self._first(), read_fingerprints(*beside) if beside else ()
        with HOST_TABLE_REFRESH_SECONDS.time():
            changes = read_changes(known.moment.snapshot, beside)
            fresh = following(known, changes)
        if not fresh.moment.has_written:
            self._publish(fresh, instead_of=known)
        self._check.start_if_due()
        return fresh, changes.fingerprints

    def verify(self) -> Mapping[str, int]:
        """Compare the incremental table with one built anew, and take that one if they differ.

        Both are read in one snapshot of the database, so concurrent writers make no difference.

        Returns:
            Column or side table -> hosts or keys that differed; empty when the tables agree.
        """
        with one_snapshot():
            known = self._position
            rebuilt = load_position(read_moment())
            known = rebuilt if known is None else newest_after(known)
        differences = table_differences(known.table, rebuilt.table)
        HOST_TABLE_CHECKS.labels(outcome="different" if differences else "equal").inc()
        for column, count in differences.items():
            HOST_TABLE_DIFFERENCES.labels(column=column).inc(count)
        if differences:
            log.error("host_table_differs", columns=differences)
        if (differences or self._position is None) and not rebuilt.moment.has_written:
            with self._publishing:
                self._position = rebuilt
        self._check.done()
        return differences

    def _first(self) -> Position:
        with self._loading:
            if self._position is not None:
                newest, _ = self._newest()
                return newest
            fresh = load_to_keep()
            if not fresh.moment.has_written:
                self._publish(fresh, instead_of=None)
                self._check.done()
            return fresh

    def _publish(self, fresh: Position, *, instead_of: Position | None) -> None:
        with self._publishing:
            if self._position is instead_of:
                self._position = fresh


_cache = HostTableCache()


def current_host_table() -> HostTable:
    """Return this process's host table, brought up to date."""
    return _cache.current()


def read_host_table(*beside: ProcessCache[Any]) -> HostTableReading:  # Any: whatever is kept
    """Return this process's host table, brought up to date, with the snapshot it was read at.

    Args:
        beside: Caches whose fingerprints come from the same statement.
    """
    return _cache.reading(*beside)


def verify_host_table() -> Mapping[str, int]:
    """Compare this process's host table with one built anew, and repair it if they differ.

    Returns:
        Column or side table -> hosts or keys that differed; empty when the tables agree.

    Source: spec scheduling, 14.5 (self-check).
    """
    return _cache.verify()
