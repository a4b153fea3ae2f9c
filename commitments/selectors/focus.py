"""Reading a month of charges, a charge period at a time (docs/focus.md)."""

from __future__ import annotations

import csv
import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from io import StringIO
from typing import Final

from commitments.domain.focus import COLUMNS, Charge, Price, focus_rows, line_of
from commitments.domain.statuses import ResourceType
from commitments.usage_models import GroupPrice
from journal.errors import InvalidInput
from journal.statements import fetch_rows

MONTH: Final = re.compile(r"(2\d{3})-(0[1-9]|1[0-2])")
LONGEST_MONTH: Final = timedelta(days=31)

CHARGES: Final = """
SELECT account.commitment_uuid, account.project_id, coalesce(project.name, ''),
       account.domain_id, coalesce(domain.name, ''), account.zone, account.flavor_group_name,
       account.resource_type, observed_seconds, promised_seconds, used_seconds
  FROM (SELECT account_id, sum(observed_seconds)::bigint AS observed_seconds,
               sum(promised_amount_seconds) AS promised_seconds,
               sum(used_amount_seconds) AS used_seconds
          FROM commitments_commitmenthour WHERE at >= %(start)s AND at < %(end)s
         GROUP BY account_id) AS hours
  JOIN commitments_commitmentaccount AS account ON account.id = hours.account_id
  LEFT JOIN hosts_project AS project ON project.openstack_id = account.project_id
  LEFT JOIN hosts_domain AS domain ON domain.openstack_id = account.domain_id
 ORDER BY account.commitment_uuid, account.id
"""
OBSERVED: Final = """
SELECT coalesce(sum(observed_seconds), 0)::bigint FROM commitments_observedhour
 WHERE at >= %(start)s AND at < %(end)s
"""


class ChargeSpan(StrEnum):
    """How long a charge period is."""

    HOUR = "hour"
    DAY = "day"

    @property
    def length(self) -> timedelta:
        """The length."""
        return timedelta(hours=1) if self is ChargeSpan.HOUR else timedelta(days=1)


def month_start(text: str) -> datetime:
    """Return when a month ``YYYY-MM`` begins.

    Raises:
        InvalidInput: it is none.
    """
    found = MONTH.fullmatch(text)
    if found is None:
        raise InvalidInput("month: must be YYYY-MM, such as 2026-11", field="month")
    return datetime(int(found[1]), int(found[2]), 1, tzinfo=UTC)


def focus_file(month: datetime, span: ChargeSpan) -> Iterator[str]:
    """Yield the lines of a month's file as CSV, a charge period at a time; the names come first.

    Periods that nobody observed have no rows.
    """
    yield _lines([list(COLUMNS)])
    for charges in month_of_charges(month, span):
        rows = [line_of(row) for charge in charges for row in focus_rows(charge)]
        if rows:
            yield _lines(rows)


def month_of_charges(month: datetime, span: ChargeSpan) -> Iterator[list[Charge]]:
    """Yield the charges of each period of a month, each read with two statements."""
    end = (month + LONGEST_MONTH + timedelta(days=1)).replace(day=1)
    prices = _Prices()
    start = month
    while start < end:
        yield _period(start, min(end, start + span.length), (month, end), prices)
        start += span.length


def unobserved_hours(month: datetime, *, until: datetime) -> timedelta:
    """Return how long in a month, as far as it has passed, nobody looked."""
    end = min((month + LONGEST_MONTH + timedelta(days=1)).replace(day=1), until)
    if end <= month:
        return timedelta(0)
    [(seconds,)] = fetch_rows(OBSERVED, {"start": month, "end": end})
    return max(end - month - timedelta(seconds=seconds), timedelta(0))


class _Prices:
    """Prices of groups, by the time from which they hold."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], list[tuple[datetime, Price]]] = defaultdict(list)
        for row in GroupPrice.objects.order_by("valid_from"):
            price = Price(currency=row.currency, hourly=row.hourly_price)
            self._known[row.flavor_group_name, row.resource_type].append((row.valid_from, price))

    def at(self, group: str, kind: str, moment: datetime) -> Price | None:
        known = self._known.get((group, kind), [])
        place = bisect_right(known, moment, key=lambda each: each[0])
        return known[place - 1][1] if place else None


def _period(
    start: datetime, end: datetime, month: tuple[datetime, datetime], prices: _Prices
) -> list[Charge]:
    span = {"start": start, "end": end}
    rows = fetch_rows(CHARGES, span)
    if not rows:
        return []
    [(platform_seconds,)] = fetch_rows(OBSERVED, span)
    return [
        Charge(
            commitment_uuid=uuid,
            project_id=project_id,
            project_name=project,
            domain_id=domain_id,
            domain_name=domain,
            zone=zone,
            group=group,
            resource_type=ResourceType(kind),
            start=start,
            end=end,
            month_start=month[0],
            month_end=month[1],
            observed_seconds=observed,
            platform_seconds=platform_seconds,
            promised_amount_seconds=int(promised),
            used_amount_seconds=int(used),
            price=prices.at(group, kind, start),
        )
        for (
            uuid, project_id, project, domain_id, domain, zone, group, kind, observed, promised,
            used,
        ) in rows
    ]  # fmt: skip


def _lines(rows: list[list[str]]) -> str:
    text = StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()
