"""Every picture, by one drawer: SVG that needs no script and reads aloud."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from django.utils.html import conditional_escape, escape, format_html
from django.utils.safestring import SafeString

BAR_WIDTH = 1000
BAR_HEIGHT = 20
PATTERNED_KINDS = frozenset({"committed", "failover", "in_flight", "own_hold"})
#: Where parts of a bar of VMs begin: uncovered ones are lower, so that it reads without colours.
COVER_TOPS = {"covered": 0, "partly": 6, "bare": 13}
LEAST_COVER_WIDTH = 14
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
        kind: Key of :data:`LEGEND` or :data:`COVER_TOPS`; decides colour and pattern.
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


def stacked_bar(segments: Sequence[Segment], *, capacity_units: int, title: str) -> SafeString:
    """Draw segments side by side against a capacity.

    A sum above the capacity shrinks the scale and draws a line where the capacity ends, so that
    over-subscription is seen and not cut off.

    Args:
        segments: Parts, left to right.
        capacity_units: What the whole bar stands for, same unit as the segments.
        title: What the bar is about; read aloud together with every part.

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
        rectangles.append(_part(segment, start, before * BAR_WIDTH // scale))
    if capacity_units < scale:
        place = capacity_units * BAR_WIDTH // scale
        rectangles.append(line("hr-limit", place, BAR_HEIGHT, words="capacity ends here"))
    return picture(
        "hr-bar",
        (BAR_WIDTH, BAR_HEIGHT),
        rectangles,
        spoken=[title, *(segment.words for segment in shown)],
    )


def _part(segment: Segment, start: int, end: int) -> SafeString:
    if segment.kind in COVER_TOPS:
        width = max(LEAST_COVER_WIDTH, end - start)
        return rectangle(
            f"hr-cover-{segment.kind}",
            min(start, BAR_WIDTH - width),  # a few among very many are seen all the same
            width,
            top=COVER_TOPS[segment.kind],
            words=segment.words,
        )
    return rectangle(
        f"hr-seg hr-seg-{segment.kind}",
        start,
        max(2, end - start),
        words=segment.words,
        fill=f"url(#hr-{segment.kind})" if segment.kind in PATTERNED_KINDS else "",
    )


def picture(
    css_class: str,
    size: tuple[int, int],
    parts: Iterable[SafeString],
    *,
    spoken: Sequence[str],
    is_stretched: bool = True,
    role: str = "img",
) -> SafeString:
    """Draw parts one over the other.

    Args:
        css_class: Classes of the ``svg`` element.
        size: Width and height of its own units.
        parts: What it shows.
        spoken: What is read aloud.
        is_stretched: Whether it fills its place, whatever its proportions.
        role: ``img``, or ``group`` where parts are links.
    """
    words = "; ".join(spoken)
    return format_html(
        '<svg class="{}" viewBox="0 0 {} {}"{} role="{}" aria-label="{}"><title>{}</title>{}</svg>',
        css_class,
        *size,
        SafeString(' preserveAspectRatio="none"') if is_stretched else "",
        role,
        words,
        words,
        _joined(parts),
    )


def rectangle(
    css_class: str,
    start: int,
    width: int,
    *,
    top: int = 0,
    height: int = BAR_HEIGHT,
    words: str = "",
    fill: str = "",
) -> SafeString:
    """Draw a rectangle; ``words`` are shown where the mouse rests on it."""
    return format_html(
        '<rect class="{}" x="{}" y="{}" width="{}" height="{}"{}>{}</rect>',
        css_class,
        start,
        top,
        width,
        height,
        format_html(' fill="{}"', fill) if fill else "",
        _title(words),
    )


def line(css_class: str, place: int, height: int, *, words: str = "") -> SafeString:
    """Draw an upright line."""
    return format_html(
        '<line class="{}" x1="{}" x2="{}" y1="0" y2="{}">{}</line>',
        css_class,
        place,
        place,
        height,
        _title(words),
    )


def label(css_class: str, place: tuple[int, int], text: str, anchor: str = "middle") -> SafeString:
    """Write a text at a place."""
    return format_html(
        '<text class="{}" x="{}" y="{}" text-anchor="{}">{}</text>', css_class, *place, anchor, text
    )


def _title(words: str) -> SafeString | str:
    return format_html("<title>{}</title>", words) if words else ""


def _joined(parts: Iterable[SafeString]) -> SafeString:
    return SafeString("".join(map(conditional_escape, parts)))


FUNNEL_WIDTH = 1000
FUNNEL_HEIGHT = 26
SCORE_WIDTH = 400
SCORE_HEIGHT = 26
LEAST_WIDTH = 2
LETTER_WIDTH = 14
WEIGHER_TONES = 6
_SCALE = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """What one weigher, or the weight at the start, adds to a score.

    Attributes:
        letter: Its letter in the picture and its key.
        share: What it adds, negative where it takes.
        tone: Number of its colour and pattern.
    """

    letter: str
    name: str
    share: float
    tone: int

    @property
    def words(self) -> str:
        """The part for people."""
        return f"{self.name}: {self.share:+.3f}"


def funnel_bar(*, before: int, remaining: int, started: int, title: str) -> SafeString:
    """Draw one step of a funnel, centred: hosts that stay, and on both sides those that go.

    Args:
        before: Hosts before the step.
        remaining: Hosts after it.
        started: Hosts before the first step: the whole width.
        title: The step in words, read aloud.
    """
    whole = max(1, started)
    outer, inner = _centred(before, whole), _centred(remaining, whole)
    parts = []
    if before > remaining:
        parts.append(rectangle("hr-funnel-gone", *outer, height=FUNNEL_HEIGHT))
    if remaining:
        parts.append(rectangle("hr-funnel-left", *inner, height=FUNNEL_HEIGHT))
    return picture("hr-funnel", (FUNNEL_WIDTH, FUNNEL_HEIGHT), parts, spoken=[title])


def score_bar(parts: Sequence[Part], *, reach: tuple[float, float], title: str) -> SafeString:
    """Draw a score as its parts: what adds to the right of zero, what takes to the left.

    Args:
        parts: Parts in order.
        reach: Lowest and highest sum of any bar of the picture, so that bars compare.
        title: The score in words, read aloud.
    """
    low, high = reach
    span = max(high - low, 1 / _SCALE)
    zero = _place(0.0, low, span)
    pieces: list[SafeString] = []
    for sign in (1, -1):
        edge = 0.0
        for part in parts:
            if part.share * sign <= 0:
                continue
            ends = sorted((_place(edge, low, span), _place(edge + part.share, low, span)))
            edge += part.share
            pieces += _pieces(part, ends[0], max(LEAST_WIDTH, ends[1] - ends[0]))
    pieces.append(line("hr-score-zero", zero, SCORE_HEIGHT))
    return picture(
        "hr-score",
        (SCORE_WIDTH, SCORE_HEIGHT),
        pieces,
        spoken=[title, *(part.words for part in parts)],
        is_stretched=False,
    )


def score_reach(scores: Sequence[Mapping[str, float]]) -> tuple[float, float]:
    """Return the lowest and the highest sum that bars of these parts reach."""
    lows = [sum(share for share in parts.values() if share < 0) for parts in scores]
    highs = [sum(share for share in parts.values() if share > 0) for parts in scores]
    return min([0.0, *lows]), max([0.0, *highs])


def _centred(count: int, whole: int) -> tuple[int, int]:
    width = max(LEAST_WIDTH, count * FUNNEL_WIDTH // whole) if count else 0
    return (FUNNEL_WIDTH - width) // 2, width


def _place(position: float, low: float, span: float) -> int:
    return int((position - low) / span * SCORE_WIDTH)


def _pieces(part: Part, start: int, width: int) -> Iterator[SafeString]:
    css_class = f"hr-weigher hr-weigher-{part.tone}"
    height = SCORE_HEIGHT - 6
    yield rectangle(css_class, start, width, top=3, height=height, words=part.words)
    if width >= LETTER_WIDTH:
        yield label("hr-weigher-letter", (start + width // 2, 18), part.letter)


CELL_WIDTH = 40
CELL_HEIGHT = 24
CELLS_PER_LINE = 20
LABEL_WIDTH = 110
LEVELS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class HeatHost:
    """A host of the heat map.

    Attributes:
        rack: Its rack; empty when unknown.
        vms: VMs on it that slots are owed to or that have some.
        unprotected_vms: Those that its loss leaves without a slot.
        slots: Failover slots that it holds.
        slot_users: VMs elsewhere that would lose one.
        url: Its page.
    """

    name: str
    rack: str
    vms: int
    unprotected_vms: int
    slots: int
    slot_users: int
    url: str

    @property
    def touched_vms(self) -> int:
        """VMs that are down or lose coverage."""
        return self.vms + self.slot_users

    @property
    def words(self) -> str:
        """The host for people."""
        return (
            f"{self.name}: {self.vms:,} VMs go down, {self.unprotected_vms:,} of them without a "
            f"slot; {self.slots:,} slots go, {self.slot_users:,} VMs elsewhere lose one"
        )


def heat_map(hosts: Iterable[HeatHost]) -> SafeString:
    """Draw hosts as cells by rack; a cell says how many VMs its loss touches.

    Racks whose hosts leave most VMs without a slot come first, then in order of name, numbers
    counted as such. The darker, the more; a cell with an exclamation mark leaves VMs without a
    slot.

    Returns:
        An ``svg`` element in which every cell links to its host.
    """
    racks: dict[str, list[HeatHost]] = {}
    for host in hosts:
        racks.setdefault(host.rack or "no rack", []).append(host)
    most = max((host.touched_vms for members in racks.values() for host in members), default=0)
    pieces: list[SafeString] = []
    line = 0
    for rack in sorted(racks, key=lambda name: _rack_rank(name, racks[name])):
        members = sorted(racks[rack], key=lambda host: natural(host.name))
        pieces.append(label("hr-heat-rack", (0, line * CELL_HEIGHT + 17), rack, "start"))
        for place, host in enumerate(members):
            column, further = place % CELLS_PER_LINE, place // CELLS_PER_LINE
            pieces.append(_cell(host, column, line + further, most))
        line += 1 + (len(members) - 1) // CELLS_PER_LINE
    return picture(
        "hr-heat",
        (LABEL_WIDTH + CELLS_PER_LINE * CELL_WIDTH, max(1, line) * CELL_HEIGHT),
        pieces,
        spoken=["Hosts by how many VMs their loss touches"],
        is_stretched=False,
        role="group",
    )


def _rack_rank(rack: str, hosts: Iterable[HeatHost]) -> tuple[int, tuple[str | int, ...]]:
    return (-sum(host.unprotected_vms for host in hosts), natural(rack))


def natural(name: str) -> tuple[str | int, ...]:
    """Return a key by which ``bb-2`` is before ``bb-10``: texts and numbers in turn."""
    return tuple(
        int(part) if place % 2 else part for place, part in enumerate(re.split(r"(\d+)", name))
    )


def heat_level(touched: int, most: int) -> int:
    """Return the shade of a cell: 0 for none, else 1 to 5 by share of the largest."""
    if touched <= 0 or most <= 0:
        return 0
    return min(LEVELS, 1 + (touched - 1) * LEVELS // most)


def _cell(host: HeatHost, column: int, line: int, most: int) -> SafeString:
    x, y = LABEL_WIDTH + column * CELL_WIDTH, line * CELL_HEIGHT
    level = heat_level(host.touched_vms, most)
    is_bad = bool(host.unprotected_vms)
    return format_html(
        '<a href="{}">{}{}</a>',
        host.url,
        rectangle(
            f"hr-heat-cell hr-heat-{level}{' hr-heat-bad' * is_bad}",
            x + 1,
            CELL_WIDTH - 2,
            top=y + 1,
            height=CELL_HEIGHT - 2,
            words=host.words,
        ),
        label(
            f"hr-heat-text hr-heat-text-{level}",
            (x + CELL_WIDTH // 2, y + 16),
            f"{host.touched_vms}{'!' * is_bad}",
        ),
    )


TILE = 18
TILES_PER_LINE = 56
TILE_LEVELS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    """A host of the map.

    Attributes:
        words: The host and its figure for people.
        url: Its page.
        level: Shade, 0 to :data:`TILE_LEVELS`.
        is_closed: Whether it takes nothing now; drawn with a dashed edge.
        is_bad: Whether something is wrong with it; drawn with a red edge.
    """

    words: str
    url: str
    level: int
    is_closed: bool = False
    is_bad: bool = False


def tile_map(title: str, tiles: Sequence[Tile]) -> SafeString:
    """Draw many hosts as small tiles, line by line; each links to its host.

    Tiles have one size, however many there are.
    """
    height = max(1, -(-len(tiles) // TILES_PER_LINE))
    return picture(
        "hr-tiles",
        (TILES_PER_LINE * TILE, height * TILE),
        (
            _tile(tile, number % TILES_PER_LINE * TILE, number // TILES_PER_LINE * TILE)
            for number, tile in enumerate(tiles)
        ),
        spoken=[title],
        is_stretched=False,
        role="group",
    )


def _tile(tile: Tile, x: int, y: int) -> SafeString:
    marks = f"{' hr-tile-closed' * tile.is_closed}{' hr-heat-bad' * tile.is_bad}"
    return SafeString(  # of tens of thousands: only the two texts can need to be escaped
        f'<a href="{escape(tile.url)}"><rect class="hr-tile hr-heat-{tile.level}{marks}" '
        f'x="{x + 1}" y="{y + 1}" width="{TILE - 2}" height="{TILE - 2}">'
        f"<title>{escape(tile.words)}</title></rect></a>"
    )
