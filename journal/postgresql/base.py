"""Django's backend for PostgreSQL, with deadlines, and fit for a transaction pooler.

Each transaction of a worker or a command begins with its deadlines (:mod:`journal.deadlines`). An
exception that comes while a statement runs, such as Celery's soft time limit, ends the statement on
the server as well. Rows are read through a server's cursor only within a transaction: one that
outlives it belongs to a server session, which a pooler gives to others.
"""

from __future__ import annotations

import select
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

import psycopg
import structlog
from django.db.backends.postgresql import base
from django_prometheus.db.backends.postgresql.base import DatabaseWrapper as MeasuredWrapper
from psycopg import IsolationLevel, generators
from psycopg.abc import PQGen
from psycopg.pq import ExecStatus, TransactionStatus

from journal.deadlines import LOCK, in_milliseconds, transaction_limits

log = structlog.get_logger(__name__)

Value = TypeVar("Value")
CANCEL_SECONDS = 5.0
#: Statements that may share a message, and so a transaction, with what sets their deadlines.
LIMITED = ("SELECT", "WITH", "INSERT", "UPDATE", "DELETE")


class LimitedConnection(psycopg.Connection[Any]):  # Any: rows of every shape
    """A connection whose transactions have deadlines and whose statements do not outlive us.

    Attributes:
        first: Statements that set the deadlines of a transaction, sent with its ``BEGIN``; empty
            for the user's defaults. None of them is a query, after which it is too late to choose
            the isolation level.
    """

    first: bytes = b""
    _is_kept: bool = False

    def keep_session(self) -> None:
        """Keep the server's session from now on: where a transaction ends, another one begins.

        Both in one message, after which a pooler has no session to give to others.
        """
        self._is_kept = True
        self.rollback()

    def leave_session(self) -> None:
        """Keep it no longer."""
        self._is_kept = False
        self.rollback()

    def _start_query(self) -> PQGen[None]:
        begins = not self.autocommit and self.pgconn.transaction_status == TransactionStatus.IDLE
        if not begins or not self.first or self._pipeline:
            yield from super()._start_query()
            return
        yield from self._begin()

    def _begin(self, *ending: bytes) -> PQGen[None]:
        """Begin a transaction, with its deadlines, in the message that ends the one before."""
        parts = (*ending, self._get_tx_start_command(), self.first)
        self.pgconn.send_query(b"; ".join(filter(None, parts)))
        for result in (yield from generators.execute(self.pgconn)):
            if result.status != ExecStatus.COMMAND_OK:
                raise psycopg.errors.error_from_result(result)

    def _commit_gen(self) -> PQGen[None]:
        yield from self._begin(b"COMMIT") if self._is_kept else super()._commit_gen()

    def _rollback_gen(self) -> PQGen[None]:
        if not self._is_kept:
            yield from super()._rollback_gen()
        elif self.pgconn.transaction_status == TransactionStatus.IDLE:
            yield from self._begin()
        else:
            yield from self._begin(b"ROLLBACK")

    def _set_autocommit_gen(self, value: bool) -> PQGen[None]:  # noqa: FBT001 - the library's
        if self._is_kept:  # else refused, as a transaction is open all the time
            self._autocommit = value
        else:
            yield from super()._set_autocommit_gen(value)

    def wait(self, gen: PQGen[Value], *args: Any, **kwargs: Any) -> Value:  # Any: of the library
        """Wait for the server; on any exception that is not its own, end the statement there."""
        try:
            return super().wait(gen, *args, **kwargs)
        except psycopg.Error:
            raise
        except BaseException:
            if self.pgconn.transaction_status == TransactionStatus.ACTIVE:
                self._end_statement(gen)
            raise

    def _end_statement(self, gen: PQGen[Any]) -> None:  # Any: the answer is thrown away
        try:
            self.cancel_safe(timeout=CANCEL_SECONDS)
            super().wait(gen, timeout=CANCEL_SECONDS)
        except psycopg.errors.QueryCanceled:
            log.info("statement_cancelled")
        except BaseException as error:
            log.warning("statement_not_cancelled", error=str(error))
            self.pgconn.finish()
            if not isinstance(error, Exception):
                raise


def _has_news(file_number: int) -> bool:
    look = select.poll()
    look.register(file_number, select.POLLIN)
    return bool(look.poll(0))


class _LimitedWrapper(base.DatabaseWrapper):
    """Opens :class:`LimitedConnection`.

    Attributes:
        limits: Query that sets the deadlines of a statement in its own message.
        is_pooled: Whether a pooler stands before the server, which may give each transaction
            another session; set when a connection is opened.
        lock_seconds: Longest wait of a transaction for a lock; that of the process when left out.
    """

    limits: str = ""
    lock_seconds: float | None = None
    is_pooled: bool = False

    def get_new_connection(self, conn_params: dict[str, Any]) -> LimitedConnection:
        self.isolation_level = IsolationLevel.READ_COMMITTED
        opened = LimitedConnection.connect(**conn_params)
        limits = transaction_limits()
        parts = [f"set_config('{name}', '{text}', true)" for name, text in limits.items()]
        self.limits = f"SELECT {', '.join(parts)}" if parts else ""
        self._limit(opened)
        return opened

    @contextmanager
    def lock_limit(self, seconds: float) -> Iterator[None]:
        """Let each transaction that begins meanwhile wait so long for a lock, and no longer."""
        self.lock_seconds = seconds
        self._limit(self.connection)
        try:
            yield
        finally:
            self.lock_seconds = None
            self._limit(self.connection)

    def _limit(self, opened: LimitedConnection | None) -> None:
        limits = dict(transaction_limits())
        if self.lock_seconds is not None:
            limits[LOCK] = in_milliseconds(self.lock_seconds)
        if opened is not None:
            opened.first = "; ".join(
                f"SET LOCAL {name} = {text}" for name, text in limits.items()
            ).encode()

    @contextmanager
    def one_session(self) -> Iterator[None]:
        """Keep what is private to the server's session, such as temporary tables, for a block.

        Transactions and statements of the block are what they are elsewhere. A pooler gives the
        session to nobody else meanwhile, as it is always in some transaction, often an empty one.
        """
        self.ensure_connection()
        kept: LimitedConnection = self.connection
        if not self.is_pooled or self.in_atomic_block:
            yield
            return
        kept.keep_session()
        try:
            with self.execute_wrapper(self._ended_alone):
                yield
        finally:
            with suppress(psycopg.Error):  # one that broke is found out by whoever asks next
                kept.leave_session()

    def _ended_alone(
        self,
        execute: Callable[..., Any],
        statement: Any,
        params: Any,
        many: bool,  # noqa: FBT001 - Django's signature
        context: dict[str, Any],
    ) -> Any:  # Any: Django's, all of them
        """End the transaction of a statement that is one by itself; its rows are here already."""
        kept = self.connection
        if not kept.autocommit:
            return execute(statement, params, many, context)
        try:
            done = execute(statement, params, many, context)
        except BaseException:
            with suppress(psycopg.Error):
                kept.rollback()
            raise
        with self.wrap_database_errors:
            kept.commit()
        return done

    def is_usable(self) -> bool:
        """Return whether the connection works, by asking the server only where that is in doubt.

        An idle connection has nothing to read but its end, so a look at the socket takes the place
        of a statement before every request.
        """
        if not self.errors_occurred and self.connection is not None:
            try:
                if not _has_news(self.connection.fileno()):
                    return True
            except (OSError, ValueError, psycopg.Error):
                pass  # the statement tells
        return bool(super().is_usable())

    def chunked_cursor(self) -> Any:  # Any: Django's wrappers of cursors
        """Return a server's cursor within a transaction, and a plain one outside."""
        return super().chunked_cursor() if self.in_atomic_block else self.cursor()


class DatabaseWrapper(MeasuredWrapper, _LimitedWrapper):  # type: ignore[misc]  # untyped library
    """What ``DATABASES`` names."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:  # Any: of the library
        super().__init__(*args, **kwargs)
        if transaction_limits():  # else each statement of a request would pay for nothing
            self.execute_wrappers.append(self._with_limits)

    def _with_limits(
        self,
        execute: Callable[..., Any],
        statement: Any,
        params: Any,
        many: bool,  # noqa: FBT001 - Django's signature
        context: dict[str, Any],
    ) -> Any:  # Any: Django's, all of them
        """Give a statement outside of a transaction the deadlines of one, in the same message.

        Not one whose parameters the server binds, since its message holds one statement only: it
        has the user's defaults.
        """
        is_bound_here = not isinstance(context["cursor"], psycopg.Cursor)
        is_alone = is_bound_here and not many and self.connection.autocommit
        if not is_alone or not isinstance(statement, str):
            return execute(statement, params, many, context)
        if not statement.lstrip().upper().startswith(LIMITED):
            return execute(statement, params, many, context)
        limits = self.limits if params is None else self.limits.replace("%", "%%")
        done = execute(f"{limits};{statement}", params, many, context)
        context["cursor"].nextset()
        return done
