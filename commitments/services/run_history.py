"""Forgetting old runs of the syncer, of imports, and of those that free hosts.

What is read of past runs stays, however old: the last that ended, that was good, that was accepted
by an operator, and that counted something which metrics tell.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final

from django.conf import settings

from journal.pruning import forget

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


#: Of commitments that are gone: the story of one that is there stays whole.
FORGET_EVENTS: Final = """
DELETE FROM commitments_commitmentevent WHERE id = ANY (ARRAY(
    SELECT id FROM commitments_commitmentevent AS event
     WHERE created_at < %(oldest)s
       AND NOT EXISTS (SELECT FROM commitments_commitment AS row
                        WHERE row.commitment_uuid = event.commitment_uuid)
     ORDER BY id LIMIT %(rows)s FOR UPDATE SKIP LOCKED))
"""


def prune_runs(*, now: datetime) -> int:
    """Forget runs older than ``HEADROOM_JOURNAL__RUNS_RETENTION_DAYS``; return how many.

    Works in chunks, each a transaction of its own; safe to run twice or beside itself.
    """
    oldest = now - timedelta(days=settings.HEADROOM.journal.runs_retention_days)
    return sum(forget(statement, oldest=oldest) for statement in (SYNC_RUNS, COMPACTION_RUNS))
