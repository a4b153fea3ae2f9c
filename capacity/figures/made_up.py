"""A past for a demo's region, so that pictures over time show something at once.

Every row says that it is made up. Nothing else may call this: what nobody looked at is a gap.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from zlib import crc32

from django.db import transaction

from capacity.figures.history import COLUMNS, keep_history
from capacity.figures.history_reads import DAY, HOUR, HOURLY_DAYS
from capacity.models import CapacityHistory, HistorySpan, HostHistory

PAST_DAYS: Final = 60
#: What VMs took so long ago, of what they take now.
START_SHARE: Final = 0.72
WEEK_DAYS: Final = 7
WAVE_SHARE: Final = 0.015
BATCH_ROWS: Final = 2_000
UNITS: Final = ("memory_bytes", "vcpus")


def make_up_history(*, now: datetime) -> int:
    """Write the present hour, and before it two months in which use grew to what it is.

    Returns:
        How many rows were made up; 0 where there is a history already.
    """
    if CapacityHistory.objects.exists() or HostHistory.objects.exists():
        return 0
    keep_history(now=now)
    present = list(CapacityHistory.objects.filter(span=HistorySpan.HOUR))
    rooms = list(HostHistory.objects.all())
    hour = now.astimezone(UTC).replace(minute=0, second=0, microsecond=0)
    today = hour.replace(hour=0)
    times = [(HistorySpan.DAY, today - days * DAY) for days in range(1, PAST_DAYS + 1)]
    since = today - HOURLY_DAYS * DAY
    times += [
        (HistorySpan.HOUR, since + hours * HOUR) for hours in range(int((hour - since) / HOUR))
    ]
    with transaction.atomic(durable=True):
        rows = [_before(row, span, at, now=hour) for span, at in times for row in present]
        CapacityHistory.objects.bulk_create(rows, batch_size=BATCH_ROWS)
        days = [
            _room_before(room, days)
            for days in range(1, PAST_DAYS + 1)
            for room in rooms
        ]  # fmt: skip
        HostHistory.objects.bulk_create(days, batch_size=BATCH_ROWS)
    return len(rows) + len(days)


def _share(name: str, age: timedelta) -> float:
    """Return which part of what VMs take now they took then, 0 to 1; the same for the same name."""
    days = age / DAY
    offset = crc32(name.encode()) % WEEK_DAYS
    wave = math.sin(2 * math.pi * (days + offset) / WEEK_DAYS) * WAVE_SHARE
    fallen = (1 - START_SHARE) * days / PAST_DAYS
    return min(1.0, 1 - fallen + wave * min(1.0, days))


def _before(
    row: CapacityHistory, span: HistorySpan, at: datetime, *, now: datetime
) -> CapacityHistory:
    share = _share(f"{row.zone}{row.group_name}", now - at)
    columns: dict[str, Any] = {name: getattr(row, name) for name in COLUMNS}
    for unit in UNITS:
        for name, gone in _changes(row, unit, share):
            if columns[f"{name}_{unit}"] is not None:
                columns[f"{name}_{unit}"] += gone
    return CapacityHistory(
        span=span,
        at=at,
        zone=row.zone,
        group_name=row.group_name,
        hours=24 if span == HistorySpan.DAY else 1,
        is_made_up=True,
        **columns,
    )


def _changes(row: CapacityHistory, unit: str, share: float) -> Iterator[tuple[str, int]]:
    """Yield by how much figures differed: what VMs in commitments did not take yet was held."""
    covered, payg = (getattr(row, f"{name}_{unit}") for name in ("covered", "payg"))
    less_covered, less_payg = covered - int(covered * share), payg - int(payg * share)
    yield "covered", -less_covered
    yield "reserved_unused", less_covered
    yield "payg", -less_payg
    yield "free", less_payg
    yield "exclusively_free", less_payg


def _room_before(room: HostHistory, days: int) -> HostHistory:
    share = _share(room.host_name, days * DAY)
    columns = {
        field.name: getattr(room, field.name)
        for field in HostHistory._meta.concrete_fields  # noqa: SLF001 - Django's model API
        if field.name not in {"id", "day", "is_made_up"}
    }
    for unit in UNITS:
        columns[f"allocated_{unit}"] = int(columns[f"allocated_{unit}"] * share)
    return HostHistory(day=room.day - days * DAY, is_made_up=True, **columns)
