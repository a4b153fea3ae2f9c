"""Statements of the Placement API: prepared once per connection, run on Django's connection.

Django binds parameters in Python and never prepares; on these paths parsing and planning would be
most of the cost. Everything else (transactions, error classes, tests' isolation) is Django's.
"""

from __future__ import annotations

import random
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


def run(sql: str, parameters: Parameters = ()) -> psycopg.Cursor[Row]:
    """Run one statement and return its cursor, rows not yet fetched.

    Raises:
        django.db.Error: as Django's own cursors raise it.
    """
    connection.ensure_connection()
    raw = connection.connection
    is_prepared = settings.HEADROOM.placement.prepared_statements
    if raw.prepare_threshold is None and is_prepared:
        raw.prepare_threshold = 0
    if connection.queries_logged:
        connection.queries_log.append({"sql": sql, "time": "0"})
    cursor: psycopg.Cursor[Row] = psycopg.Cursor(raw)
    with connection.wrap_database_errors:
        cursor.execute(sql, parameters, prepare=is_prepared)
    return cursor


def fetch(sql: str, parameters: Parameters = ()) -> list[Row]:
    """Return the rows of a query that writes nothing.

    A connection that broke while it was idle is noticed here, without asking the server before
    every request, and the query is run once more on a new one.
    """
    try:
        return run(sql, parameters).fetchall()
    except OperationalError:
        if connection.in_atomic_block or not connection.connection.closed:
            raise
        connection.close()
        return run(sql, parameters).fetchall()


def lock_timeout() -> str:
    """Return the longest wait for a lock, as the database writes it."""
    return f"{int(settings.HEADROOM.lock_timeout_seconds * 1000)}ms"


def in_transaction(work: Callable[[], Result]) -> Result:
    """Run ``work`` in one transaction with bounded lock waits; see :func:`retried`."""

    def attempt() -> Result:
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
