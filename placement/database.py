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
from functools import cache, partial
from itertools import count
from typing import Any, TypeVar, cast

import psycopg
import structlog
from django.db import DEFAULT_DB_ALIAS, OperationalError, connection, connections, transaction
from psycopg.adapt import Transformer
from psycopg.pq import DiagnosticField, ExecStatus
from psycopg.pq.abc import PGresult

from journal.errors import Busy
from journal.history import close_left_connection
from journal.outages import LOCK_NOT_AVAILABLE, sqlstate_of
from placement.conf import headroom
from placement.domain.errors import CONCURRENT_UPDATE, Conflict

log = structlog.get_logger(__name__)

Row = tuple[Any, ...]  # Any: columns of one statement
Parameters = Sequence[Any] | dict[str, Any]  # Any: whatever psycopg can send
Result = TypeVar("Result")

RETRYABLE = frozenset({"40001", "40P01"})
UNKNOWN_STATEMENT = b"26000"
LOCK_TIMEOUT_SQL = "SELECT set_config('lock_timeout', %s, true)"


_numbers = count()


class _Statements:
    """Statements that one connection has prepared, run without the driver's cursor.

    A cursor takes longer over a small statement than the server does. Here the call waits inside
    the C library, which lets other threads run. The driver makes the server forget all statements
    after a rollback, so one that it does not know is prepared again under a new name.
    """

    def __init__(self, raw: psycopg.Connection[Any]) -> None:
        self.raw = raw
        self._names: dict[str, bytes] = {}
        self._transformer = Transformer(raw)

    def rows(self, sql: str, values: Sequence[str | int | None]) -> list[Row]:
        """Return the rows of a statement.

        Raises:
            psycopg.Error: it failed.
        """
        encoded = [None if value is None else str(value).encode() for value in values]
        if any(value is not None and b"\0" in value for value in encoded):
            message = "PostgreSQL text fields cannot contain NUL (0x00) bytes"
            raise psycopg.DataError(message)
        result = self._result(sql, encoded)
        if result.status != ExecStatus.TUPLES_OK:
            raise _failure(result)
        self._transformer.set_pgresult(result)
        return self._transformer.load_rows(0, result.ntuples, tuple)

    def _result(self, sql: str, values: Sequence[bytes | None]) -> PGresult:
        # A null is None, which the driver's types do not know.
        pgconn = self.raw.pgconn
        known = self._names.get(sql)
        if known is not None:
            result = pgconn.exec_prepared(known, cast("Sequence[bytes]", values))
            if result.error_field(DiagnosticField.SQLSTATE) != UNKNOWN_STATEMENT:
                return result
        name = self._names[sql] = f"headroom_{next(_numbers)}".encode()
        prepared = pgconn.prepare(name, _numbered(sql))
        if prepared.status != ExecStatus.COMMAND_OK:
            del self._names[sql]
            return prepared
        return pgconn.exec_prepared(name, cast("Sequence[bytes]", values))


@cache
def _numbered(sql: str) -> bytes:
    """Return a statement with numbered places for its values, as the server wants it."""
    first, *others = sql.split("%s")
    text = first + "".join(f"${number}{part}" for number, part in enumerate(others, 1))
    return text.replace("%%", "%").encode()


def _failure(result: PGresult) -> psycopg.Error:
    if result.error_field(DiagnosticField.SQLSTATE) is None:  # the connection broke
        return psycopg.OperationalError(result.get_error_message())
    return psycopg.errors.error_from_result(result)


class _Local(threading.local):
    """What this thread keeps: Django's wrapper of its connection, and a cursor.

    Making a cursor takes as long as a small query, and finding the wrapper is not free either.
    """

    wrapper: Any = None  # Any: what Django makes of each backend
    cursor: psycopg.Cursor[Row] | None = None
    is_prepared: bool = True
    statements: _Statements | None = None


_local = _Local()


def _wrapper() -> Any:  # Any: as above
    wrapper = _local.wrapper
    if wrapper is None:
        wrapper = _local.wrapper = connections[DEFAULT_DB_ALIAS]
    return wrapper


def _prepares(wrapper: Any) -> bool:  # Any: as above
    """Return whether statements stay prepared on a connection; wrong behind most poolers."""
    chosen = headroom().placement.prepared_statements
    return bool(chosen == "on" or (chosen == "auto" and not wrapper.is_pooled))


def run(sql: str, parameters: Parameters = ()) -> psycopg.Cursor[Row]:
    """Run one statement and return its cursor, good until the next statement of this thread.

    Raises:
        django.db.Error: as Django's own cursors raise it.
    """
    wrapper = _wrapper()
    wrapper.ensure_connection()
    raw = wrapper.connection
    cursor = _local.cursor
    if cursor is None or cursor.connection is not raw:
        _local.is_prepared = _prepares(wrapper)
        if _local.is_prepared:
            raw.prepare_threshold = 0
        cursor = _local.cursor = psycopg.Cursor(raw)
    if wrapper.queries_logged:
        wrapper.queries_log.append({"sql": sql, "time": "0"})
    with wrapper.wrap_database_errors:
        if wrapper.execute_wrappers:
            return _run_watched(wrapper, cursor, sql, parameters)
        return cursor.execute(sql, parameters, prepare=_local.is_prepared)


def _run_watched(
    wrapper: Any, cursor: psycopg.Cursor[Row], sql: str, parameters: Parameters
) -> psycopg.Cursor[Row]:
    """Run a statement inside what somebody has put around those of this connection."""

    def execute(sql: str, parameters: Parameters, *_: object) -> psycopg.Cursor[Row]:
        return cursor.execute(sql, parameters, prepare=_local.is_prepared)

    for watch in reversed(wrapper.execute_wrappers):
        execute = partial(watch, execute)
    many, context = False, {"connection": wrapper, "cursor": cursor}
    return execute(sql, parameters, many, context)


def fetch(sql: str, parameters: Parameters = ()) -> list[Row]:
    """Return the rows of a query that writes nothing."""
    drop_dead_connection()
    return run(sql, parameters).fetchall()


def fetch_prepared(sql: str, values: Sequence[str | int | None] = ()) -> list[Row]:
    """Run one statement of a small fixed number of them, in its own transaction; return its rows.

    Args:
        sql: A constant, with ``%s`` for each value; the connection keeps it prepared.
        values: Texts and numbers only; arrays as the database writes them.

    Raises:
        django.db.Error: as Django's own cursors raise it.
    """
    drop_dead_connection()
    wrapper = _wrapper()
    wrapper.ensure_connection()
    if (
        wrapper.in_atomic_block
        or wrapper.queries_logged
        or wrapper.execute_wrappers
        or not wrapper.get_autocommit()
        or not _prepares(wrapper)
    ):
        return run(sql, values).fetchall()
    statements = _local.statements
    if statements is None or statements.raw is not wrapper.connection:
        statements = _local.statements = _Statements(wrapper.connection)
    with wrapper.wrap_database_errors:
        return statements.rows(sql, values)


def drop_dead_connection() -> None:
    """Close a connection that the server ended while it was idle, so that a new one is opened.

    An idle connection has nothing to read but its end, so a look at the socket takes the place of
    a statement before every request.
    """
    wrapper = _wrapper()
    close_left_connection(wrapper)
    raw = wrapper.connection
    if raw is None or wrapper.in_atomic_block:
        return
    try:
        is_doubtful = wrapper.errors_occurred or bool(select.select([raw.fileno()], (), (), 0)[0])
    except (OSError, ValueError, psycopg.Error):
        is_doubtful = True
    if is_doubtful:
        wrapper.errors_occurred = False
        if not wrapper.is_usable():
            wrapper.close()
    wrapper.health_check_done = True


def lock_timeout() -> str:
    """Return the longest wait for a lock, as the database writes it."""
    return f"{int(headroom().lock_timeout_seconds * 1000)}ms"


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
    retries = headroom().placement.allocation_conflict_retry_count
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
    raise Conflict(message, wire_code=CONCURRENT_UPDATE, reason="retry_exhausted")
