"""Forgetting what is over: coverage, refusals, runs (spec commitments, 14.7; spec liquid, 11.5).

What is read of past runs stays, however old: the last that ended, that was good, that was accepted
by an operator, and that counted something which metrics tell. All work in chunks, each a
transaction of its own, and are safe to run twice or beside themselves.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final

from django.conf import settings

from journal.pruning import forget

PRUNE_CHUNK_ROWS = 10_000

PERIODS = """
DELETE FROM commitments_assignmentperiod WHERE id IN (
    SELECT id FROM commitments_assignmentperiod
     WHERE valid_to < %(oldest)s ORDER BY valid_to LIMIT %(rows)s FOR UPDATE SKIP LOCKED
)
"""
REFUSALS = """
DELETE FROM commitments_refusedchange WHERE id IN (
    SELECT id FROM commitments_refusedchange
     WHERE created_at < %(oldest)s ORDER BY created_at LIMIT %(rows)s FOR UPDATE SKIP LOCKED
)
"""
_FORGET = """
DELETE FROM {table} WHERE id = ANY (ARRAY(
    SELECT id FROM {table}
     WHERE finished_at < %(oldest)s AND id <> ALL (ARRAY({kept}))
     ORDER BY id LIMIT %(rows)s FOR UPDATE SKIP LOCKED))
"""
SYNC_RUNS: Final = _FORGET.format(
    table="commitments_syncrun",
    kept="""
    SELECT last.id FROM (
        SELECT max(id) AS ended,
               max(id) FILTER (WHERE outcome = 'success') AS good,
               max(id) FILTER (WHERE shrink_accepted_by <> '') AS accepted,
               max(id) FILTER (WHERE counts ? 'understood') AS understood,
               max(id) FILTER (WHERE counts ? 'missing') AS missing
          FROM commitments_syncrun WHERE finished_at IS NOT NULL GROUP BY source
    ) AS run CROSS JOIN LATERAL (VALUES (ended), (good), (accepted), (understood), (missing))
      AS last(id) WHERE last.id IS NOT NULL
    """,
)
COMPACTION_RUNS: Final = _FORGET.format(
    table="commitments_compactionrun",
    kept="SELECT max(id) FROM commitments_compactionrun"
    " WHERE finished_at IS NOT NULL GROUP BY zone",
)


#: Of commitments that are gone: the story of one that is there stays whole. Numbers grow with time,
#: so the first young row ends what is looked through; there is no index on the time of all rows.
FORGET_EVENTS: Final = """
DELETE FROM commitments_commitmentevent WHERE id = ANY (ARRAY(
    SELECT id FROM commitments_commitmentevent AS event
     WHERE id < coalesce((SELECT id FROM commitments_commitmentevent
                           WHERE created_at >= %(oldest)s ORDER BY id LIMIT 1),
                         9223372036854775807)
       AND created_at < %(oldest)s
       AND NOT EXISTS (SELECT FROM commitments_commitment AS row
                        WHERE row.commitment_uuid = event.commitment_uuid)
     ORDER BY id LIMIT %(rows)s FOR UPDATE SKIP LOCKED))
"""


def prune_periods(*, now: datetime) -> int:
    """Forget periods that ended ``HEADROOM_USAGE__HISTORY_RETENTION_DAYS`` ago; return how many.

    Open ones stay however old.
    """
    oldest = now - timedelta(days=settings.HEADROOM.usage.history_retention_days)
    return forget(PERIODS, PRUNE_CHUNK_ROWS, is_append_only=True, oldest=oldest)


def prune_refusals(*, now: datetime) -> int:
    """Forget refusals older than ``HEADROOM_LIQUID__REFUSAL_RETENTION_DAYS``; return how many."""
    oldest = now - timedelta(days=settings.HEADROOM.liquid.refusal_retention_days)
    return forget(REFUSALS, PRUNE_CHUNK_ROWS, oldest=oldest)


def prune_runs(*, now: datetime) -> int:
    """Forget runs older than ``HEADROOM_JOURNAL__RUNS_RETENTION_DAYS``; return how many."""
    oldest = now - timedelta(days=settings.HEADROOM.journal.runs_retention_days)
    return sum(forget(statement, oldest=oldest) for statement in (SYNC_RUNS, COMPACTION_RUNS))
