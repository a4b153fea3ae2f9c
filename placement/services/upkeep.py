"""Keeping the change log and the allocation history short (spec placement, 9.4, 12)."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from typing import Final

import structlog
from django.conf import settings
from django.db import DatabaseError, IntegrityError, ProgrammingError, connection, transaction

from core.prepared import fetch_prepared, run
from core.sql import load_sql
from journal.pruning import in_batches

log = structlog.get_logger(__name__)

CHANGES_KEPT: Final = timedelta(hours=1)
WEEKS_AHEAD: Final = 2
BATCH_ROWS: Final = 10_000
PARTITION_PREFIX: Final = "placement_allocation_event_w"

PRUNE_CHANGES = load_sql("placement", "prune_changes")
#: A project whose usage is in more rows than this has them replaced by their sums.
MOST_USAGE_ROWS: Final = 64
#: A reader who met more rows of a project sums them up for those who read after it.
MOST_READ_ROWS: Final = 256
FOLD_USAGE_OF = "SELECT placement_fold_usage_of(%s)"
FOLD_PROJECT_USAGE = "SELECT placement_fold_project_usage(%s)"
PARTITIONS = """
SELECT c.relname FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
 WHERE i.inhparent = 'placement_allocation_event'::regclass AND starts_with(c.relname, %s)
"""
FORGET_REST = """
DELETE FROM placement_allocation_event_rest
 WHERE id IN (SELECT id FROM placement_allocation_event_rest WHERE created_at < %s LIMIT %s)
"""


def prune_changes() -> int:
    """Forget changes that every reader has seen, one to two hours old; return how many."""
    with transaction.atomic(durable=True):
        rows = run(PRUNE_CHANGES, [CHANGES_KEPT]).fetchall()
    return int(rows[0][0])


def fold_project_usage() -> int:
    """Sum up what writes of allocations noted of the usage of projects; return how many rows.

    Takes the table's lock against another run; writers go on.
    """
    with transaction.atomic(durable=True):
        rows = run(FOLD_PROJECT_USAGE, [MOST_USAGE_ROWS]).fetchall()
    return int(rows[0][0])


def fold_usage_of(project_id: str, rows: int) -> None:
    """Sum up what writes noted of the usage of a project, after a read of more rows than are good.

    Where that is not possible just now, the next reader or the task does it.

    Args:
        project_id: The project, as consumers name it.
        rows: How many were read.
    """
    if rows <= MOST_READ_ROWS or connection.in_atomic_block:
        return
    try:
        fetch_prepared(FOLD_USAGE_OF, [project_id])
    except DatabaseError as error:
        log.warning("placement_usage_not_folded", project_id=project_id, error=type(error).__name__)


def keep_history(now: datetime) -> dict[str, int]:
    """Make room for the coming weeks' events and drop whole weeks that are too old.

    Args:
        now: The present; weeks begin on Monday, UTC.

    Returns:
        How many weeks were made and dropped, and how many single events forgotten.
    """
    today = now.astimezone(UTC).date()
    monday = today - timedelta(days=today.weekday())
    oldest = today - timedelta(days=settings.HEADROOM.placement.history_days)
    known = {row[0] for row in run(PARTITIONS, [PARTITION_PREFIX]).fetchall()}
    weeks = [monday + timedelta(weeks=ahead) for ahead in range(WEEKS_AHEAD + 1)]
    made = sum(_make_week(week) for week in weeks if _name(week) not in known)
    dropped = [name for name in sorted(known) if _week(name) + timedelta(weeks=1) <= oldest]
    for name in dropped:
        _drop_week(name)
    forgotten = in_batches(lambda: run(FORGET_REST, [oldest, BATCH_ROWS]).rowcount, BATCH_ROWS)
    return {"made": made, "dropped": len(dropped), "forgotten": forgotten}


def _name(week: date) -> str:
    return f"{PARTITION_PREFIX}{week:%Y%m%d}"


def _week(name: str) -> date:
    return (
        datetime.strptime(name.removeprefix(PARTITION_PREFIX), "%Y%m%d").replace(tzinfo=UTC).date()
    )


def _make_week(week: date) -> bool:
    """Make the partition of a week, unless its events already lie in the one for the rest."""
    end = week + timedelta(weeks=1)
    statement = (
        f"CREATE TABLE {_name(week)} PARTITION OF placement_allocation_event "
        f"FOR VALUES FROM ('{week} 00:00+00') TO ('{end} 00:00+00')"
    )
    try:
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute(statement)
    except (
        IntegrityError,
        ProgrammingError,
    ) as error:  # events lie there, or another run was first
        log.info("placement_history_week_skipped", week=str(week), error=str(error).split("\n")[0])
        return False
    return True


def _drop_week(name: str) -> None:
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(f"DROP TABLE IF EXISTS {name}")
