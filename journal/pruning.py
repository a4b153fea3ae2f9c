"""Forgetting old entries of the deletion log and the outbox (design, "Concurrency").

Both are read by transaction id from a position that the reader remembers. How far a log was
forgotten is written in the same transaction, so a reader that slept for longer than the retention
sees that it cannot trust the log and reads everything anew, instead of missing a change.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final

import structlog
from django.conf import settings
from django.db import connection, transaction

from journal.metrics_pruning import PRUNED_ROWS
from journal.models import PrunedLog

log = structlog.get_logger(__name__)

BATCH_ROWS: Final = 5_000

# Of transactions older than every running one only: positions that readers take from now on are
# behind these rows, however long another transaction runs.
_FORGET = """
WITH gone AS (
    DELETE FROM {table}
     WHERE id = ANY (ARRAY(
           SELECT id FROM {table}
            WHERE {time_column} < %(oldest)s
              AND {xid_column} < pg_snapshot_xmin(pg_current_snapshot())::text::bigint
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
        table="journal_deletedrow", time_column="deleted_at", xid_column="changed_xid"
    ),
    PrunedLog.Log.OUTBOX: _FORGET.format(
        table="journal_outbox", time_column="created_at", xid_column="transaction_id"
    ),
}


def prune_logs(*, now: datetime, batch_rows: int = BATCH_ROWS) -> dict[str, int]:
    """Forget entries of the deletion log and the outbox that are past their retention.

    Works in batches, each a transaction of its own; safe to run twice, beside itself, and to be
    killed.

    Args:
        now: The present.
        batch_rows: Most rows that a transaction deletes.

    Returns:
        How many entries of each log were forgotten.
    """
    chosen = settings.HEADROOM.journal
    oldest = {
        PrunedLog.Log.DELETIONS: now - timedelta(hours=chosen.deletions_retention_hours),
        PrunedLog.Log.OUTBOX: now - timedelta(days=chosen.outbox_retention_days),
    }
    pruned = {
        name.value: _prune(name, oldest=oldest[name], batch_rows=batch_rows) for name in FORGET
    }
    log.info("journal_pruned", counts=pruned)
    return pruned


def _prune(name: PrunedLog.Log, *, oldest: datetime, batch_rows: int) -> int:
    parameters: dict[str, str | datetime | int] = {
        "log": name.value,
        "oldest": oldest,
        "rows": batch_rows,
    }
    total = 0
    while True:
        with transaction.atomic(durable=True), connection.cursor() as cursor:
            cursor.execute(FORGET[name], parameters)
            row = cursor.fetchone()
        done = int(row[0]) if row else 0
        PRUNED_ROWS.labels(log=name.value).inc(done)
        total += done
        if done < batch_rows:
            return total
