"""Statements prepared once per connection, run on Django's connection.

Django binds parameters in Python and never prepares, and its cursors and the driver's take longer
over a small statement than the server does. On the paths that Nova waits for that would be most of
the cost: a scheduler's call of five statements takes 1.5 ms less here. Everything else
(transactions, error classes, tests' isolation) is Django's.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import timedelta
from functools import cache, partial
from itertools import count
from typing import Any, cast

import psycopg
from django.db import InterfaceError, OperationalError
from psycopg.adapt import Transformer
from psycopg.pq import DiagnosticField, ExecStatus
from psycopg.pq.abc import PGresult

from core.conf import headroom
from core.copying import number_array, text_array
from core.sessions import Session, current_session
from journal.history import close_left_connection
from journal.known_settings import known_setting

Row = tuple[Any, ...]  # Any: columns of one statement
Parameters = Sequence[Any] | Mapping[str, Any]  # Any: whatever psycopg can send

UNKNOWN_STATEMENT = b"26000"
NAMED = re.compile(r"%\((\w+)\)s")

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

    def rows(self, sql: str, parameters: Parameters) -> list[Row]:
        """Return the rows of a statement.

        Raises:
            psycopg.Error: it failed.
        """
        _, names = _numbered(sql)
        if names:
            named = cast("Mapping[str, Any]", parameters)
            parameters = [named[name] for name in names]
        encoded = [
            value.encode() if type(value) is str else _encoded(value) for value in parameters
        ]
        for value in encoded:
            if value is not None and b"\0" in value:
                raise psycopg.DataError("PostgreSQL text fields cannot contain NUL (0x00) bytes")
        result = self._result(sql, encoded)
        if result.status != ExecStatus.TUPLES_OK:
            raise _failure(result)
        self._transformer.set_pgresult(result)
        return self._transformer.load_rows(0, result.ntuples, tuple)

    def _result(self, sql: str, values: Any) -> PGresult:  # Any: a null is None, unlike their types
        pgconn = self.raw.pgconn
        known = self._names.get(sql)
        if known is not None:
            result = pgconn.exec_prepared(known, values)
            if result.error_field(DiagnosticField.SQLSTATE) != UNKNOWN_STATEMENT:
                return result
        name = self._names[sql] = f"headroom_{next(_numbers)}".encode()
        prepared = pgconn.prepare(name, _numbered(sql)[0])
        if prepared.status != ExecStatus.COMMAND_OK:
            del self._names[sql]
            return prepared
        return pgconn.exec_prepared(name, values)


@cache
def _numbered(sql: str) -> tuple[bytes, tuple[str, ...]]:
    """Return a statement with numbered places, as the server wants it, and what goes into them.

    The names are empty where the values have their places by their order.
    """
    names = tuple(dict.fromkeys(NAMED.findall(sql)))
    if names:
        text = NAMED.sub(lambda found: f"${names.index(found[1]) + 1}", sql)
    else:
        first, *others = sql.split("%s")
        text = first + "".join(f"${number}{part}" for number, part in enumerate(others, 1))
    return text.replace("%%", "%").encode(), names


def _encoded(value: Any) -> bytes | None:  # Any: see fetch_prepared
    if value is None:
        return None
    if isinstance(value, str):  # such as one with names of its own
        return value.encode()
    if isinstance(value, bytes):
        return rb"\x" + value.hex().encode()
    if isinstance(value, timedelta):
        return f"{value.total_seconds()} seconds".encode()
    if isinstance(value, list):
        is_text = any(isinstance(entry, str) for entry in value)
        return (text_array(value) if is_text else number_array(value)).encode()
    return str(value).encode()


def _failure(result: PGresult) -> psycopg.Error:
    if result.error_field(DiagnosticField.SQLSTATE) is None:  # the connection broke
        return psycopg.OperationalError(result.get_error_message())
    return psycopg.errors.error_from_result(result)


class _Kept:
    """What is kept for an open connection: making a cursor takes as long as a small query."""

    __slots__ = ("cursor", "is_prepared", "raw", "statements")

    def __init__(self, wrapper: Any) -> None:  # Any: what Django makes of each backend
        self.raw = wrapper.connection
        self.is_prepared = _prepares(wrapper)
        if self.is_prepared:
            self.raw.prepare_threshold = 0
        self.cursor: psycopg.Cursor[Row] = psycopg.Cursor(self.raw)
        self.statements = _Statements(self.raw)


def _kept(session: Session) -> _Kept:
    """Return what is kept for the connection of a session, which is opened if it is not."""
    wrapper = session.wrapper
    raw = wrapper.connection
    if raw is None:
        wrapper.ensure_connection()
        raw = wrapper.connection
    kept: _Kept | None = session.kept
    if kept is None or kept.raw is not raw:
        kept = session.kept = _Kept(wrapper)
    return kept


def _prepares(wrapper: Any) -> bool:  # Any: as above
    """Return whether statements stay prepared on a connection; wrong behind most poolers."""
    chosen = headroom().placement.prepared_statements
    return bool(chosen == "on" or (chosen == "auto" and not wrapper.is_pooled))


def _are_logged(wrapper: Any) -> bool:  # Any: as above
    """Return what Django's ``queries_logged`` says, sooner."""
    return bool(wrapper.force_debug_cursor or known_setting("DEBUG"))


def run(sql: str, parameters: Parameters = ()) -> psycopg.Cursor[Row]:
    """Run one statement and return its cursor, good until the next statement of this thread.

    Raises:
        django.db.Error: as Django's own cursors raise it.
    """
    session = current_session()
    wrapper, kept = session.wrapper, _kept(session)
    cursor = kept.cursor
    if _are_logged(wrapper):
        wrapper.queries_log.append({"sql": sql, "time": "0"})
    with wrapper.wrap_database_errors:
        if wrapper.execute_wrappers:
            return _run_watched(wrapper, kept, sql, parameters)
        return cursor.execute(sql, parameters, prepare=kept.is_prepared)


def _run_watched(
    wrapper: Any, kept: _Kept, sql: str, parameters: Parameters
) -> psycopg.Cursor[Row]:
    """Run a statement inside what somebody has put around those of this connection."""
    cursor = kept.cursor

    def execute(sql: str, parameters: Parameters, *_: object) -> psycopg.Cursor[Row]:
        return cursor.execute(sql, parameters, prepare=kept.is_prepared)

    for watch in reversed(wrapper.execute_wrappers):
        execute = partial(watch, execute)
    many, context = False, {"connection": wrapper, "cursor": cursor}
    return execute(sql, parameters, many, context)


def fetch(sql: str, parameters: Parameters = ()) -> list[Row]:
    """Return the rows of a query that writes nothing."""
    drop_dead_connection()
    return run(sql, parameters).fetchall()


def fetch_prepared(sql: str, parameters: Parameters = ()) -> list[Row]:
    """Run one statement of a small fixed number of them, in its own transaction; return its rows.

    Args:
        sql: A constant, with ``%s`` for each value or ``%(name)s``; the connection keeps it
            prepared. The type of each place must be plain from the statement.
        parameters: Texts, bytes, numbers, UUIDs, times, durations, and lists of texts or numbers;
            arrays as the database writes them as well.

    Raises:
        django.db.Error: as Django's own cursors raise it.
    """
    session = current_session()
    _drop_dead(session.wrapper)
    return _prepared_rows(session, sql, parameters)


def fetch_again(sql: str, parameters: Parameters = ()) -> list[Row]:
    """Return the rows of a query as :func:`fetch_prepared` does, without a look at the session.

    If that was lost, a query may be asked again.

    Raises:
        django.db.Error: as Django's own cursors raise it.
    """
    session = current_session()
    wrapper = session.wrapper
    close_left_connection(wrapper)
    try:
        return _prepared_rows(session, sql, parameters)
    except (InterfaceError, OperationalError):
        raw = wrapper.connection
        if wrapper.in_atomic_block or raw is None or not raw.closed:
            raise
    wrapper.close()
    return _prepared_rows(session, sql, parameters)


def _prepared_rows(session: Session, sql: str, parameters: Parameters) -> list[Row]:
    wrapper, kept = session.wrapper, _kept(session)
    if wrapper.execute_wrappers or _are_logged(wrapper):  # such as those that set deadlines
        with wrapper.cursor() as cursor:
            cursor.execute(sql, parameters)
            return list(cursor.fetchall())
    if wrapper.in_atomic_block or not wrapper.autocommit or not _prepares(wrapper):
        return run(sql, parameters).fetchall()
    try:
        return kept.statements.rows(sql, parameters)
    except psycopg.Error:
        with wrapper.wrap_database_errors:
            raise


def drop_dead_connection() -> None:
    """Close a connection that the server ended while it was idle, so that a new one is opened."""
    _drop_dead(current_session().wrapper)


def _drop_dead(wrapper: Any) -> None:  # Any: as above
    close_left_connection(wrapper)
    if wrapper.connection is None or wrapper.in_atomic_block:
        return
    if not wrapper.is_usable():
        wrapper.close()
    wrapper.errors_occurred = False
    wrapper.health_check_done = True
