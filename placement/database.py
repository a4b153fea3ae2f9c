"""Statements of the Placement API: prepared once per connection, run on Django's connection.

Django binds parameters in Python and never prepares; on these paths parsing and planning would be
most of the cost. Everything else (transactions, error classes, tests' isolation) is Django's.
"""

from __future__ import annotations

import random
import select
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import psycopg
import structlog
from django.conf import settings
from django.db import OperationalError, connection, transaction

from capacity.locks import LOCK_NOT_AVAILABLE, sqlstate_of
from journal.errors import Busy
from placement.domain.errors import CONCURRENT_UPDATE, Conflict

log = structlog.get_logger(__name__)

Row = tuple[Any, ...]  # Any: columns of one statement
Parameters = Sequence[Any] | dict[str, Any]  # Any: whatever psycopg can send
Result = TypeVar("Result")

RETRYABLE = frozenset({"40001", "40P01"})
LOCK_TIMEOUT_SQL = "SELECT set_config('lock_timeout', %s, true)"


class _Local(threading.local):
    """The cursor of this thread's connection: making one takes as long as a small query."""

    cursor: psycopg.Cursor[Row] | None = None


_local = _Local()


def run(sql: str, parameters: Parameters = ()) -> psycopg.Cursor[Row]:
    """Run one statement and return its cursor, good until the next statement of this thread.

    Raises:
        django.db.Error: as Django's own cursors raise it.
    """
    connection.ensure_connection()
    raw = connection.connection
    cursor = _local.cursor
    if cursor is None or cursor.connection is not raw:
        if _is_prepared():
            raw.prepare_threshold = 0
        cursor = _local.cursor = psycopg.Cursor(raw)
    if connection.queries_logged:
        connection.queries_log.append({"sql": sql, "time": "0"})
    with connection.wrap_database_errors:
        return cursor.execute(sql, parameters, prepare=_is_prepared())


def fetch(sql: str, parameters: Parameters = ()) -> list[Row]:
    """Return the rows of a query that writes nothing."""
    drop_dead_connection()
    return run(sql, parameters).fetchall()


def drop_dead_connection() -> None:
    """Close a connection that the server ended while it was idle, so that a new one is opened.

    An idle connection has nothing to read but its end, so a look at the socket takes the place of
    a statement before every request.
    """
    raw = connection.connection
    if raw is None or connection.in_atomic_block:
        return
    try:
        is_readable = bool(select.select([raw.fileno()], (), (), 0)[0])
    except (OSError, ValueError, psycopg.Error):
        is_readable = True
    if is_readable and not connection.is_usable():
        connection.close()
    connection.health_check_done = True  # type: ignore[attr-defined]  # Django's own flag


def _is_prepared() -> bool:
    return bool(settings.HEADROOM.placement.prepared_statements)


def lock_timeout() -> str:
    """Return the longest wait for a lock, as the database writes it."""
    return f"{int(settings.HEADROOM.lock_timeout_seconds * 1000)}ms"


def in_transaction(work: Callable[[], Result]) -> Result:
    """Run ``work`` in one transaction with bounded lock waits; see :func:`retried`."""

    def attempt() -> Result:
        drop_dead_connection()
        with transaction.atomic():
            run(LOCK_TIMEOUT_SQL, [lock_timeout()])
            return work()

    return retried(attempt)


def retried(attempt: Callable[[], Result]) -> Result:
    """Run one transaction, again when it lost a deadlock.

    Raises:
        Busy: a lock was not free in time.
        Conflict: it lost every time.
    """
    retries = settings.HEADROOM.placement.allocation_conflict_retry_count
    for number in range(retries + 1):
        try:
            return attempt()
        except OperationalError as error:
            state = sqlstate_of(error)
            if state == LOCK_NOT_AVAILABLE:
                raise Busy("the rows are being changed by another") from error
            if state not in RETRYABLE or connection.in_atomic_block:
                raise
            log.info("placement_write_retried", sqlstate=state, attempt=number + 1)
            time.sleep(random.uniform(0, 0.02) * (number + 1))  # noqa: S311 - spreads writers
    message = "Inventory and/or allocations changed while attempting to allocate: try again"
    raise Conflict(message, code=CONCURRENT_UPDATE)
