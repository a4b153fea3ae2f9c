"""Forgetting which commitment covered which VM long ago (spec commitments, 14.7)."""

from __future__ import annotations

from datetime import datetime, timedelta

from django.conf import settings

from journal.pruning import forget

PRUNE_CHUNK_ROWS = 10_000

DELETE = """
DELETE FROM commitments_assignmentperiod WHERE id IN (
    SELECT id FROM commitments_assignmentperiod
     WHERE valid_to < %(oldest)s ORDER BY valid_to LIMIT %(rows)s FOR UPDATE SKIP LOCKED
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
    return forget(DELETE, PRUNE_CHUNK_ROWS, is_append_only=True, oldest=now - retention)
