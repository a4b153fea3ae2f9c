"""Every picture over time, by one helper: a canvas by script, and the numbers behind it as a table.

A page that shows one includes ``admin/parts/chart_scripts.html`` once and
``admin/parts/time_chart.html`` for each. Without scripts, and for screen readers, the table tells
the same; a time in which nobody looked breaks the lines.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final, Literal

from capacity.figures.history_reads import DAY, gaps, host_history, span_of
from capacity.models import CapacityHistory, HostCapacity, HostHistory
from commitments.selectors.usage_history import UsageSpan
from console.base import PageData
from core.text import NOTHING, count_text, memory_short, moment_text, percent_text

Unit = Literal["memory", "vcpus"]
Layer = tuple[str, str, str]
"""Name of the figure, what it is called, and its kind: the colour, as in ``charts.LEGEND``."""

TEXTS: Final[dict[Unit, Callable[[int | None], str]]] = {
    "memory": memory_short,
    "vcpus": count_text,
}
SUFFIXES: Final[dict[Unit, str]] = {"memory": "memory_bytes", "vcpus": "vcpus"}

ZONE_LAYERS: Final[tuple[Layer, ...]] = (
    ("covered", "VMs in commitments", "own_vms"),
    ("payg", "other VMs", "vms"),
    ("reserved_unused", "held for commitments", "committed"),
    ("failover", "held for failover", "failover"),
    ("in_flight", "VMs being placed", "in_flight"),
    ("free", "free", "free"),
)
GROUP_LAYERS: Final[tuple[Layer, ...]] = (
    *ZONE_LAYERS[:3],
    ("exclusively_free", "free for this group", "free"),
)
PROJECT_LAYERS: Final[tuple[Layer, ...]] = (
    ("used", "used", "own_vms"),
    ("idle", "idle", "committed"),
)
HOST_LAYERS: Final[tuple[Layer, ...]] = (
    ("allocated", "VMs", "vms"),
    ("committed", "held for commitments", "committed"),
    ("failover", "held for failover", "failover"),
    ("in_flight", "VMs being placed", "in_flight"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """What was at one time.

    Attributes:
        at: When it began.
        length: How long it speaks for.
        row: Where its figures are read.
        is_made_up: Whether nobody looked and a demo invented it.
    """

    at: datetime
    length: timedelta
    row: Any  # Any: rows of several models with figures of the same names
    is_made_up: bool = False


def time_chart(
    key: str,
    title: str,
    moments: Sequence[Moment],
    *,
    layers: Sequence[Layer],
    total: str,
    total_words: str = "installed",
    unit: Unit = "memory",
) -> PageData:
    """Return a picture of figures stacked over time for ``admin/parts/time_chart.html``.

    Args:
        key: Unique on its page, letters, digits and dashes.
        title: What it is about.
        moments: In the order of time.
        layers: What is stacked, from the bottom.
        total: Figure that is drawn as a line over them: what there is in all.
        total_words: What that is called.
        unit: Whether memory or vCPUs are shown.
    """
    suffix, text = SUFFIXES[unit], TEXTS[unit]
    columns = [*(name for name, _, _ in layers), total]
    amounts = [[getattr(moment.row, f"{name}_{suffix}") for name in columns] for moment in moments]
    headings = [*(words for _, words, _ in layers), total_words]
    is_made_up = any(moment.is_made_up for moment in moments)
    return PageData(
        key=key,
        script_id=f"chart-{key}",
        title=title,
        is_made_up=is_made_up,
        begins=len(moments) == 1,
        summary=_summary(amounts, headings, text),
        headings=headings,
        legend=[(kind, words) for _, words, kind in layers],
        lines=[
            PageData(
                at=moment_text(moment.at),
                is_made_up=moment.is_made_up,
                cells=[text(amount) if amount is not None else NOTHING for amount in line],
            )
            for moment, line in zip(reversed(moments), reversed(amounts), strict=True)
        ],
        content={
            "unit": unit,
            "times": _times(moments),
            "layers": [
                {"name": words, "kind": kind, "amounts": _column(moments, amounts, number)}
                for number, (_, words, kind) in enumerate(layers)
            ],
            "total": {"name": total_words, "amounts": _column(moments, amounts, len(layers))},
        },
    )


def history_moments(rows: Sequence[CapacityHistory]) -> list[Moment]:
    """Return rows of a zone or a group as moments of a picture."""
    return [
        Moment(at=at, length=length, row=row, is_made_up=row.is_made_up)
        for row in rows
        for at, length in [span_of(row)]
    ]


def host_chart(host_name: str, room: HostCapacity | None, *, now: datetime) -> PageData:
    """Return the picture of a host: its days, and what it is now."""
    days: list[HostHistory] = host_history(host_name, now=now)
    moments = [
        Moment(
            at=datetime(row.day.year, row.day.month, row.day.day, tzinfo=now.tzinfo),
            length=DAY,
            row=row,
            is_made_up=row.is_made_up,
        )
        for row in days
    ]
    if room is not None:
        moments.append(Moment(at=now, length=DAY, row=room))
    return time_chart("host", "Memory of this host", moments, layers=HOST_LAYERS, total="effective")


def project_chart(spans: Sequence[UsageSpan]) -> PageData:
    """Return the picture of what a project had committed, used and left idle."""
    return time_chart(
        "project",
        "Committed memory",
        [Moment(at=span.at, length=span.length, row=span) for span in spans],
        layers=PROJECT_LAYERS,
        total="held",
        total_words="committed",
    )


def _breaks(moments: Sequence[Moment]) -> set[int]:
    return gaps([(moment.at, moment.length) for moment in moments])


def _times(moments: Sequence[Moment]) -> list[int]:
    """Return milliseconds since 1970, with a time of its own behind which nothing is known."""
    after = _breaks(moments)
    times = []
    for number, moment in enumerate(moments):
        times.append(_milliseconds(moment.at))
        if number in after:
            times.append(_milliseconds(moment.at + moment.length))
    return times


def _column(
    moments: Sequence[Moment], amounts: Sequence[Sequence[int | None]], number: int
) -> list[int | None]:
    after = _breaks(moments)
    column: list[int | None] = []
    for place, line in enumerate(amounts):
        column.append(line[number])
        if place in after:
            column.append(None)
    return column


def _milliseconds(moment: datetime) -> int:
    return int(moment.timestamp()) * 1000


def _summary(
    amounts: Sequence[Sequence[int | None]],
    headings: Sequence[str],
    text: Callable[[int | None], str],
) -> str:
    """Say where it stands now: what is read aloud in the place of the picture."""
    if not amounts:
        return ""
    last = amounts[-1]
    whole = last[-1] or 0
    parts = [
        f"{words} {text(amount)} ({percent_text(amount, whole)})"
        for words, amount in zip(headings[:-1], last, strict=False)
        if amount
    ]
    return "; ".join([f"now {text(whole)} {headings[-1]}", *parts])
