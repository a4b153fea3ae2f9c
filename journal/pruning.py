"""Forgetting old entries of the log of changes and the outbox (design, "Concurrency").

Both are read by transaction id from a position that the reader remembers. How far a log was
forgotten is written in the same transaction, so a reader that slept for longer than the retention
sees that it cannot trust the log and reads everything anew, instead of missing a change.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Final

import structlog
from django.conf import settings
from django.db import connection, transaction

from journal.counters import PRUNED_ROWS
from journal.models import PrunedLog
from journal.statements import fetch_value

log = structlog.get_logger(__name__)

BATCH_ROWS: Final = 5_000

# Of transactions older than every running one only: positions that readers take from now on are
# behind these rows, however long another transaction runs. Consumers are waited for, for a while.
_FORGET = """
WITH gone AS (
    DELETE FROM {table}
     WHERE id = ANY (ARRAY(
           SELECT id FROM {table}
            WHERE {time_column} < %(oldest)s
              AND {xid_column} < least(
                  pg_snapshot_xmin(pg_current_snapshot())::text::bigint,
                  (SELECT min(split_part(position, ':', 1)::bigint) FROM journal_logconsumer
                    WHERE position <> '' AND moved_at > %(waits_since)s))
            ORDER BY {time_column} LIMIT %(rows)s FOR UPDATE SKIP LOCKED))
    RETURNING {xid_column} AS xid
), marked AS (
    INSERT INTO journal_prunedlog AS known (log, pruned_xid)
    SELECT %(log)s, max(xid) FROM gone HAVING count(*) > 0
    ON CONFLICT (log) DO UPDATE
       SET pruned_xid = greatest(known.pruned_xid, excluded.pruned_xid),
           pruned_at = statement_timestamp()
)
SELECT count(*) FROM gone
"""
FORGET: Final = {
    PrunedLog.Log.DELETIONS: _FORGET.format(
        table="journal_loggedchange", time_column="logged_at", xid_column="changed_xid"
    ),
    PrunedLog.Log.OUTBOX: _FORGET.format(
        table="journal_outbox", time_column="created_at", xid_column="transaction_id"
    ),
}


def prune_logs(*, now: datetime, batch_rows: int = BATCH_ROWS) -> dict[str, int]:
    """Forget entries of the log of changes and the outbox that are past their retention.

    Works in batches, each a transaction of its own; safe to run twice, beside itself, and to be
    killed.

    Args:
        batch_rows: Most rows that a transaction deletes.

    Returns:
        How many entries of each log were forgotten.
    """
    chosen = settings.HEADROOM.journal
    oldest = {
        PrunedLog.Log.DELETIONS: now - timedelta(hours=chosen.deletions_retention_hours),
        PrunedLog.Log.OUTBOX: now - timedelta(days=chosen.outbox_retention_days),
    }
    waits_since = now - timedelta(hours=chosen.consumer_age_hours)
    pruned = {
        name.value: _prune(
            name, oldest=oldest[name], waits_since=waits_since, batch_rows=batch_rows
        )
        for name in FORGET
    }
    log.info("journal_pruned", counts=pruned)
    return pruned


# Who is logged in, clocks of processes that ended, answers to keys: nobody reads them once over.
_FORGET_OVER = """
DELETE FROM {table} WHERE ctid = ANY (ARRAY(
    SELECT ctid FROM {table} WHERE {over} LIMIT %(rows)s FOR UPDATE SKIP LOCKED))
"""
FORGET_OVER: Final = {
    "sessions": _FORGET_OVER.format(table="django_session", over="expire_date < %(now)s"),
    "clocks": _FORGET_OVER.format(
        table="journal_processclock", over="looked_at < %(now)s - interval '1 day'"
    ),
    "kept_answers": _FORGET_OVER.format(
        table="journal_keptanswer", over="created_at < %(now)s - interval '1 day'"
    ),
}


# The table takes no deletion but from a transaction that says it forgets.
ALLOW: Final = "SELECT set_config('headroom.retention', %s, true)"
FORGET_AUDIT: Final = """
DELETE FROM journal_auditentry WHERE id = ANY (ARRAY(
    SELECT id FROM journal_auditentry WHERE created_at < %(oldest)s
     ORDER BY created_at LIMIT %(rows)s FOR UPDATE SKIP LOCKED))
"""


def in_batches(work: Callable[[], int], rows: int) -> int:
    """Do some work, each time in a transaction of its own, until less was left than its most.

    What is done so is safe to run twice, beside itself, and to be killed.

    Args:
        work: Returns how many rows it did.
        rows: The most that it does at once.

    Returns:
        How many rows it did in all.
    """
    total, done = 0, rows
    while done == rows:
        with transaction.atomic(durable=True):
            done = work()
        total += done
    return total


def forget(
    statement: str, rows: int = BATCH_ROWS, *, is_append_only: bool = False, **chosen: datetime
) -> int:
    """Delete rows :func:`in_batches`; return how many.

    Args:
        statement: Deletes at most ``%(rows)s``.
        rows: The most that a transaction deletes.
        is_append_only: Whether the table takes no deletion but from who says that it forgets.
        chosen: Other parameters of the statement.
    """
    values: dict[str, datetime | int] = {**chosen, "rows": rows}

    def delete() -> int:
        with connection.cursor() as cursor:
            if is_append_only:
                cursor.execute(ALLOW, ["on"])
            cursor.execute(statement, values)
            done = int(cursor.rowcount)
            if is_append_only:
                cursor.execute(ALLOW, ["off"])  # in a test the transaction goes on
            return done

    return in_batches(delete, rows)


def prune_append_only(statement: str, *, now: datetime) -> int:
    """Forget rows of an append-only table past ``HEADROOM_JOURNAL__AUDIT_RETENTION_DAYS``.

    Args:
        statement: Deletes at most ``rows`` of those older than ``oldest``.

    Returns:
        How many were forgotten.
    """
    days = settings.HEADROOM.journal.audit_retention_days
    if not days:
        return 0
    return forget(statement, is_append_only=True, oldest=now - timedelta(days=days))


def prune_over(*, now: datetime, batch_rows: int = BATCH_ROWS) -> dict[str, int]:
    """Forget expired sessions, clocks of processes gone for a day, and answers as old.

    Args:
        batch_rows: Most rows that a transaction deletes.

    Returns:
        How many of each were forgotten.
    """
    pruned = {name: forget(text, batch_rows, now=now) for name, text in FORGET_OVER.items()}
    log.info("journal_pruned", counts=pruned)
    return pruned


def _prune(name: PrunedLog.Log, *, oldest: datetime, waits_since: datetime, batch_rows: int) -> int:
    parameters: dict[str, str | datetime | int] = {
        "log": name.value,
        "oldest": oldest,
        "waits_since": waits_since,
        "rows": batch_rows,
    }
    total = 0
    while True:
        with transaction.atomic(durable=True):
            done = int(fetch_value(FORGET[name], parameters))
        PRUNED_ROWS.labels(log=name.value).inc(done)
        total += done
        if done < batch_rows:
            return total
