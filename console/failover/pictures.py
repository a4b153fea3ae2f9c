"""Pictures of coverage and drills as SVG that needs no script and reads aloud."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

BAR_WIDTH = 1000
BAR_HEIGHT = 22
LEAST_WIDTH = 14
CELL_WIDTH = 40
CELL_HEIGHT = 24
CELLS_PER_LINE = 20
LABEL_WIDTH = 110
LEVELS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """A part of a bar of VMs.

    Attributes:
        kind: ``covered``, ``partly`` or ``bare``; decides colour and pattern.
        vms: How many.
        words: What they are.
    """

    kind: str
    vms: int
    words: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HeatHost:
    """A host of the heat map.

    Attributes:
        name: Its name.
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


def share_bar(shares: Sequence[Share], *, whole: int, title: str) -> SafeString:
    """Draw how VMs divide, side by side; every part has a title and a pattern of its own.

    Args:
        shares: Parts, left to right.
        whole: VMs that the whole width stands for.
        title: What the bar is about, read aloud with every part.
    """
    shown = [share for share in shares if share.vms > 0]
    scale = max(1, whole)
    pieces = []
    before = 0
    for share in shown:
        start = before * BAR_WIDTH // scale
        before += share.vms
        pieces.append(_piece(share, start, before * BAR_WIDTH // scale))
    spoken = "; ".join([title, *(f"{share.words}: {share.vms:,}" for share in shown)])
    return format_html(
        '<svg class="hr-bar" viewBox="0 0 {} {}" preserveAspectRatio="none" role="img"'
        ' aria-label="{}"><title>{}</title>{}</svg>',
        BAR_WIDTH,
        BAR_HEIGHT,
        spoken,
        spoken,
        format_html_join("", "{}", ((piece,) for piece in pieces)),
    )


def _piece(share: Share, start: int, end: int) -> SafeString:
    width = max(LEAST_WIDTH, end - start)
    return format_html(
        '<rect class="hr-cover-{}" x="{}" y="{}" width="{}" height="{}"><title>{}</title></rect>',
        share.kind,
        min(start, BAR_WIDTH - width),  # a few among very many are seen all the same
        # uncovered parts are lower, so that the bar reads without colours
        {"covered": 0, "partly": BAR_HEIGHT // 3, "bare": 2 * BAR_HEIGHT // 3}[share.kind],
        width,
        BAR_HEIGHT,
        f"{share.words}: {share.vms:,}",
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
        members = sorted(racks[rack], key=lambda host: _natural(host.name))
        pieces.append(
            format_html(
                '<text class="hr-heat-rack" x="0" y="{}">{}</text>',
                line * CELL_HEIGHT + 17,
                rack,
            )
        )
        for place, host in enumerate(members):
            column, further = place % CELLS_PER_LINE, place // CELLS_PER_LINE
            pieces.append(_cell(host, column, line + further, most))
        line += 1 + (len(members) - 1) // CELLS_PER_LINE
    return format_html(
        '<svg class="hr-heat" viewBox="0 0 {} {}" role="group" aria-label="{}">{}</svg>',
        LABEL_WIDTH + CELLS_PER_LINE * CELL_WIDTH,
        max(1, line) * CELL_HEIGHT,
        "Hosts by how many VMs their loss touches",
        format_html_join("", "{}", ((piece,) for piece in pieces)),
    )


def _rack_rank(rack: str, hosts: Iterable[HeatHost]) -> tuple[int, tuple[str | int, ...]]:
    return (-sum(host.unprotected_vms for host in hosts), _natural(rack))


def _natural(name: str) -> tuple[str | int, ...]:
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
    mark = "!" if host.unprotected_vms else ""
    return format_html(
        '<a href="{}"><rect class="hr-heat-cell hr-heat-{}{}" x="{}" y="{}" width="{}"'
        ' height="{}"><title>{}</title></rect><text class="hr-heat-text hr-heat-text-{}" x="{}"'
        ' y="{}" text-anchor="middle">{}{}</text></a>',
        host.url,
        level,
        " hr-heat-bad" if host.unprotected_vms else "",
        x + 1,
        y + 1,
        CELL_WIDTH - 2,
        CELL_HEIGHT - 2,
        host.words,
        level,
        x + CELL_WIDTH // 2,
        y + 16,
        host.touched_vms,
        mark,
    )
