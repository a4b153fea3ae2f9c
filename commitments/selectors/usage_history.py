"""What a project had committed and used over time, from the hours that are kept (docs/focus.md)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from commitments.domain.statuses import ResourceType
from commitments.services.usage_hours import RETENTION
from commitments.usage_models import CommitmentAccount
from journal.statements import fetch_rows
from scheduling.resources import MIB

MOST_HOURS_READ: Final = 250_000
"""Rows of hours; a project with more commitments is told of for fewer days."""
FEW_DAYS: Final = 4
HOUR: Final = timedelta(hours=1)
DAY: Final = timedelta(days=1)

HISTORY: Final = """
WITH seen AS (
    SELECT date_trunc(%(span)s, at, 'UTC') AS start, sum(observed_seconds)::bigint AS seconds
      FROM commitments_observedhour WHERE at >= %(since)s GROUP BY 1
), hours AS (
    SELECT date_trunc(%(span)s, at, 'UTC') AS start,
           sum(promised_amount_seconds) AS promised, sum(used_amount_seconds) AS used
      FROM commitments_commitmenthour
     WHERE account_id = ANY(%(accounts)s) AND at >= %(since)s GROUP BY 1
)
SELECT seen.start, (coalesce(hours.promised, 0) / seen.seconds)::bigint,
       (coalesce(hours.used, 0) / seen.seconds)::bigint
  FROM seen LEFT JOIN hours ON hours.start = seen.start
 WHERE seen.seconds > 0 ORDER BY seen.start
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageSpan:
    """A day or an hour: means over the time in which somebody looked.

    Attributes:
        at: When it began.
        held_memory_bytes: What commitments promised.
        used_memory_bytes: What of it VMs used, commitment by commitment.
    """

    at: datetime
    length: timedelta
    held_memory_bytes: int
    used_memory_bytes: int

    @property
    def idle_memory_bytes(self) -> int:
        """What nobody used."""
        return self.held_memory_bytes - self.used_memory_bytes


def usage_history(project_id: str, *, now: datetime) -> list[UsageSpan]:
    """Return the days of a project's memory in the order of time, hours while there are few days.

    From the first in which it had a commitment; times that nobody observed are left out.
    """
    accounts = list(
        CommitmentAccount.objects.filter(
            project_id=project_id, resource_type=ResourceType.MEMORY
        ).values_list("pk", flat=True)
    )
    if not accounts:
        return []
    today = now.replace(hour=0, minute=0, second=0, microsecond=0)
    days = min(RETENTION.days, max(1, MOST_HOURS_READ // (24 * len(accounts))))
    found = _spans(accounts, today - days * DAY, DAY)
    return _spans(accounts, today - FEW_DAYS * DAY, HOUR) if len(found) < FEW_DAYS else found


def _spans(accounts: Sequence[int], since: datetime, length: timedelta) -> list[UsageSpan]:
    rows = fetch_rows(
        HISTORY,
        {"span": "day" if length == DAY else "hour", "since": since, "accounts": accounts},
    )
    first = next((place for place, (_, promised, _) in enumerate(rows) if promised), len(rows))
    return [
        UsageSpan(
            at=at,
            length=length,
            held_memory_bytes=promised * MIB,
            used_memory_bytes=min(used, promised) * MIB,
        )
        for at, promised, used in rows[first:]
    ]
