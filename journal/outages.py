"""Which errors mean that something an answer needs is away: the one mapping of all APIs.

Each API family shows the :class:`~journal.errors.Unavailable` that comes out in its own shape: 503
with ``Retry-After``.
"""

from __future__ import annotations

import psycopg
import structlog
from django.db import Error as DjangoDatabaseError
from django.db import InterfaceError, OperationalError
from kombu.exceptions import OperationalError as BrokerError
from redis import RedisError

from journal.errors import Busy, Unavailable

log = structlog.get_logger(__name__)

LOCK_NOT_AVAILABLE = "55P03"
#: The same transaction may succeed at once: serialization failure, deadlock, lock timeout.
RETRYABLE = frozenset({"40001", "40P01", LOCK_NOT_AVAILABLE})
UNIQUE_VIOLATION = "23505"
#: A limit on the time of statements and transactions, or an operator, ended the work.
CUT_SHORT = frozenset({"57014", "25P03", "25P04"})
#: A standby, or a server that takes no writes.
READ_ONLY = "25006"
#: Classes of errors: connection lost, out of resources, operator intervention, system.
OUTAGE_CLASSES = frozenset({"08", "53", "57", "58"})
CUT_SHORT_RETRY_SECONDS = 5
DatabaseFailure = (DjangoDatabaseError, psycopg.Error)
BrokerFailure = (BrokerError, RedisError)


class DatabaseUnavailable(Unavailable):
    """The database does not answer, or does not take what the request has to write."""

    code = "database_unavailable"


class BrokerUnavailable(Unavailable):
    """The broker does not answer."""

    code = "broker_unavailable"


def sqlstate_of(error: BaseException) -> str:
    """Return the SQLSTATE behind a database error, or the empty string."""
    source = error if isinstance(error, psycopg.Error) else error.__cause__
    return str(getattr(source, "sqlstate", "") or "")


def is_retryable(error: BaseException, *others: str) -> bool:
    """Whether the transaction that a database error ended may succeed if it begins anew at once.

    Args:
        error: What ended it.
        others: Further SQLSTATEs after which it may.
    """
    return isinstance(error, DatabaseFailure) and sqlstate_of(error) in {*RETRYABLE, *others}


def as_unavailable(error: BaseException) -> Unavailable | None:
    """Return what callers are told if something that an answer needs is away, else None.

    An error that was raised from such a one counts as well. The log gets one line, no traceback:
    nothing is wrong with the program.
    """
    link: BaseException | None = error
    while link is not None:
        told = _told_by_kind(link)
        if told is not None:
            return told
        link = link.__cause__
    return None


def _told_by_kind(error: BaseException) -> Unavailable | None:
    if isinstance(error, Unavailable):
        return error
    if isinstance(error, BrokerFailure):
        log.warning("broker_unavailable", error=str(error))
        return BrokerUnavailable("the broker does not answer")
    if isinstance(error, DatabaseFailure):
        return _told_by_sqlstate(error)
    return None


def _told_by_sqlstate(error: BaseException) -> Unavailable | None:
    state = sqlstate_of(error)
    if state in RETRYABLE:
        return Busy("the rows are being changed by another", sqlstate=state)
    if state in CUT_SHORT:
        log.warning("database_statement_cut_short", sqlstate=state, error=str(error))
        return Busy(
            "the database did not finish in time",
            retry_after_seconds=CUT_SHORT_RETRY_SECONDS,
            sqlstate=state,
        )
    if state == READ_ONLY:
        log.warning("database_unavailable", sqlstate=state, error=str(error))
        return DatabaseUnavailable("the database takes no writes now", sqlstate=state)
    if state[:2] in OUTAGE_CLASSES or (not state and _has_lost_connection(error)):
        log.warning("database_unavailable", sqlstate=state, error=str(error).strip())
        return DatabaseUnavailable("the database does not answer", sqlstate=state)
    return None


def _has_lost_connection(error: BaseException) -> bool:
    """Return whether an error that the server did not send is about the connection itself."""
    lost = (OperationalError, InterfaceError, psycopg.OperationalError, psycopg.InterfaceError)
    return isinstance(error, lost)
