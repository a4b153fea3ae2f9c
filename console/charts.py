"""Bars of what fills a capacity, as SVG that needs no script and reads aloud."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

BAR_WIDTH = 1000
BAR_HEIGHT = 20
PATTERNED_KINDS = frozenset({"committed", "failover", "in_flight", "own_hold"})
LEGEND = {
    "vms": "VMs",
    "own_vms": "VMs inside this commitment",
    "own_hold": "held for this commitment",
    "committed": "held for commitments",
    "failover": "held for failover",
    "in_flight": "VMs being placed",
    "free": "free",
    "other": "not available to this group",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """A part of a bar.

    Attributes:
        kind: Key of :data:`LEGEND`; decides colour and pattern.
        amount_units: Length in the unit of the bar's capacity, not negative.
        text: The amount for people, with its unit.
        label: What it is; the legend's words when empty.
    """

    kind: str
    amount_units: int
    text: str
    label: str = ""

    @property
    def words(self) -> str:
        """What the segment is and how much."""
        return f"{self.label or LEGEND[self.kind]}: {self.text}"


def stacked_bar(
    segments: Sequence[Segment], *, capacity_units: int, title: str, css_class: str = ""
) -> SafeString:
    """Draw segments side by side against a capacity.

    A sum above the capacity shrinks the scale and draws a line where the capacity ends, so that
    over-subscription is seen and not cut off.

    Args:
        segments: Parts, left to right.
        capacity_units: What the whole bar stands for, same unit as the segments.
        title: What the bar is about; read aloud together with every part.
        css_class: Further class of the ``svg`` element.

    Returns:
        An ``svg`` element with a title per part.
    """
    shown = [segment for segment in segments if segment.amount_units > 0]
    scale = max(capacity_units, sum(segment.amount_units for segment in shown), 1)
    rectangles = []
    before = 0
    for segment in shown:
        start = before * BAR_WIDTH // scale
        before += segment.amount_units
        rectangles.append(_rectangle(segment, start, before * BAR_WIDTH // scale))
    spoken = "; ".join([title, *(segment.words for segment in shown)])
    return format_html(
        '<svg class="hr-bar {}" viewBox="0 0 {} {}" preserveAspectRatio="none" role="img"'
        ' aria-label="{}"><title>{}</title>{}{}</svg>',
        css_class,
        BAR_WIDTH,
        BAR_HEIGHT,
        spoken,
        spoken,
        format_html_join("", "{}", ((rectangle,) for rectangle in rectangles)),
        _capacity_line(capacity_units, scale),
    )


def _rectangle(segment: Segment, start: int, end: int) -> SafeString:
    fill = format_html(' fill="url(#hr-{})"', segment.kind)
    return format_html(
        '<rect class="hr-seg hr-seg-{}"{} x="{}" y="0" width="{}" height="{}">'
        "<title>{}</title></rect>",
        segment.kind,
        fill if segment.kind in PATTERNED_KINDS else "",
        start,
        max(2, end - start),
        BAR_HEIGHT,
        segment.words,
    )


def _capacity_line(capacity_units: int, scale: int) -> SafeString:
    if capacity_units >= scale:
        return SafeString("")
    place = capacity_units * BAR_WIDTH // scale
    return format_html(
        '<line class="hr-limit" x1="{}" x2="{}" y1="0" y2="{}"><title>capacity ends here</title>'
        "</line>",
        place,
        place,
        BAR_HEIGHT,
    )
