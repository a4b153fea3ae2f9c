"""Reading the history of capacity: days, and hours of the last few days."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

from django.db.models import Q

from capacity.models import CapacityHistory, HistorySpan, HostHistory

SHOWN_DAYS: Final = 90
#: So many days back hours are shown, which a day's mean would flatten.
HOURLY_DAYS: Final = 3
HOUR: Final = timedelta(hours=1)
DAY: Final = timedelta(days=1)


def recent_history(
    *, zones: Collection[str], groups: Collection[str], now: datetime
) -> dict[tuple[str, str], list[CapacityHistory]]:
    """Return what is known of the last 90 days, in one query.

    Args:
        zones: Availability zones.
        groups: Names of flavor groups; the empty one is the whole zone.

    Returns:
        (zone, group) to its rows in the order of time: days, then hours of the last three days;
        nothing for those without any.
    """
    today = now.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    turn = today - HOURLY_DAYS * DAY
    days = Q(span=HistorySpan.DAY, at__gte=today - SHOWN_DAYS * DAY, at__lt=turn)
    hours = Q(span=HistorySpan.HOUR, at__gte=turn)
    rows = CapacityHistory.objects.filter(days | hours, zone__in=zones, group_name__in=groups)
    found: dict[tuple[str, str], list[CapacityHistory]] = {}
    for row in rows.order_by("at"):
        found.setdefault((row.zone, row.group_name), []).append(row)
    return found


def host_history(host_name: str, *, now: datetime) -> list[HostHistory]:
    """Return the days of a host of the last 90 days, in the order of time."""
    since = now.astimezone(UTC).date() - SHOWN_DAYS * DAY
    rows = HostHistory.objects.filter(host_name=host_name, day__gte=since)
    return list(rows.order_by("day"))


def gaps(times: Sequence[tuple[datetime, timedelta]]) -> set[int]:
    """Return after which of some times nobody looked.

    Args:
        times: Begin and length of what each row speaks for, in the order of time.
    """
    pairs: Iterable[tuple[int, tuple[datetime, timedelta]]] = enumerate(times[:-1])
    return {number for number, (at, length) in pairs if times[number + 1][0] > at + length}


def span_of(row: CapacityHistory) -> tuple[datetime, timedelta]:
    """Return when the time began that a row speaks for, and how long it is."""
    return row.at, DAY if row.span == HistorySpan.DAY else HOUR
