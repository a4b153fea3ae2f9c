"""Forgetting which commitment covered which VM long ago (spec commitments, 14.7)."""

from __future__ import annotations

from datetime import datetime, timedelta

from django.conf import settings
from django.db import connection, transaction

PRUNE_CHUNK_ROWS = 10_000

# The history is append-only but for this word of the transaction that forgets.
ALLOW = "SELECT set_config('headroom.retention', 'on', true)"
DELETE = """
DELETE FROM commitments_assignmentperiod WHERE id IN (
    SELECT id FROM commitments_assignmentperiod
     WHERE valid_to < %s ORDER BY valid_to LIMIT %s FOR UPDATE SKIP LOCKED
)
"""


def prune_periods(*, now: datetime, retention: timedelta | None = None) -> int:
    """Forget periods that ended longer ago than their retention; open ones stay however old.

    Works in chunks, each a transaction of its own; safe to run twice or beside itself.

    Args:
        now: The present.
        retention: Age of its end from which a period is forgotten;
            ``HEADROOM_USAGE__HISTORY_RETENTION_DAYS`` when left out.

    Returns:
        How many were forgotten.
    """
    if retention is None:
        retention = timedelta(days=settings.HEADROOM.usage.history_retention_days)
    total = 0
    while True:
        with transaction.atomic(durable=True), connection.cursor() as cursor:
            cursor.execute(ALLOW)
            cursor.execute(DELETE, [now - retention, PRUNE_CHUNK_ROWS])
            done = int(cursor.rowcount)
            # In a test the transaction goes on: the word must not.
            cursor.execute("SELECT set_config('headroom.retention', 'off', true)")
        total += done
        if done < PRUNE_CHUNK_ROWS:
            return total
