"""What changed since a position: how every follower of tables asks (ADR 26).

A position is the ``pg_snapshot`` of a read (:class:`journal.history.Moment` while it is in memory,
its text where it is stored). What came after it is what the snapshot does not show: transactions
that began later and those that were running, in whatever order they commit. So no late commit is
missed, a rollback leaves nothing, and a row may at most be read twice.

Triggers log the keys of rows that statements wrote or deleted, in
:class:`journal.models.LoggedChange`. Who follows a table reads these rows again.
Everything is read anew when

- the log was forgotten beyond the position (:func:`is_forgotten`), or
- the position is of another history of the database (:func:`journal.history.is_continued`).

What a transaction wrote itself, no snapshot tells apart: such a reader goes on from a position
before its own writes, or keeps nothing (:attr:`journal.history.Moment.has_written`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from django.db import connection, transaction

from journal.history import Moment, is_continued
from journal.statements import execute, fetch_value

#: SQL expression over a small table's rows whose text changes whenever one of them does. A plain
#: sum would not do: a transaction that began early and commits late can overwrite rows of younger
#: ones with its own lower number, and bring the sum back to what it was.
ROWS_MARK: Final = "count(*) || '/' || coalesce(sum(hashint8extended(id, changed_xid)), 0)"


def xmin_of(position: str) -> int:
    """Return the number below which a position saw every transaction."""
    return int(position.partition(":")[0])


def changed_rows(table: str, alias: str, *, since: str) -> str:
    """Return the SQL of the rows of a followed table that were written since a position.

    For a FROM clause. Rows are looked up one by one by their key (``OFFSET 0`` keeps it that way),
    whatever the server knows of a table that may have been filled a moment ago.

    Args:
        table: A :class:`journal.models.FollowedModel`'s.
        alias: Of the rows.
        since: SQL expression of the position's text.
    """
    return (
        f"(SELECT found.* FROM journal_changes('{table}', {since}) AS logged"  # noqa: S608 - our own names
        f" CROSS JOIN LATERAL (SELECT * FROM {table} WHERE id = logged.row_id OFFSET 0) AS found"
        f" WHERE NOT logged.is_deletion) AS {alias}"
    )


def has_deletions(*tables: str, since: str) -> str:
    """Return the SQL condition that rows of tracked tables were deleted since a position.

    It holds as well where that was forgotten.
    """
    asked = (
        f"EXISTS (SELECT FROM journal_changes('{table}', {since}) WHERE is_deletion)"
        for table in tables
    )
    return " OR ".join((*asked, is_forgotten(since)))


def is_forgotten(since: str) -> str:
    """Return the SQL condition that changes after a position were forgotten."""
    return f"journal_is_forgotten({since})"


def is_read_anew(position: str, now: Moment, *, reader: str) -> bool:
    """Return whether a stored position leads no more to a moment, so that all is read anew.

    Args:
        position: Text of a :class:`journal.history.Moment`.
        reader: Who asks, one of :data:`journal.counters.READERS`.
    """
    snapshot, written, wal, history = position.split(" ", 3)
    known = Moment(snapshot=snapshot, has_written=written == "1", wal=wal, history=history)
    if not is_continued(known, now, reader=reader):
        return True
    return bool(fetch_value(f"SELECT {is_forgotten('%(since)s')}", {"since": snapshot}))


def is_unseen(xid: str, *, since: str) -> str:
    """Return the SQL condition that a position did not see a transaction.

    For rows of a short log of their own, which bear its number.
    """
    return f"NOT pg_visible_in_snapshot({xid}::text::xid8, ({since})::pg_snapshot)"


def unseen_by(snapshot: str) -> dict[str, Any]:
    """Return the parts of a position, as functions take them that look up the log themselves."""
    xmin, xmax, running = snapshot.split(":")
    return {
        "xmin": int(xmin),
        "xmax": int(xmax),
        "running": [int(xid) for xid in running.split(",") if xid],
    }


@contextmanager
def one_snapshot() -> Iterator[None]:
    """Read in one snapshot; inside a caller's transaction that is the caller's business."""
    if connection.in_atomic_block:
        yield
        return
    with transaction.atomic():
        execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        yield


def has_one_snapshot() -> bool:
    """Return whether all statements of this transaction see the same state of the database."""
    return connection.in_atomic_block and (
        fetch_value("SHOW transaction_isolation") != "read committed"
    )
