"""``/admin/map/``: the hosts of a zone as tiles, by free, stranded, reserved room or by risk."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from typing import Final

import numpy as np
from django.db.models import Count, F, IntegerField, OuterRef, Subquery
from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from django.utils.http import urlencode

from capacity.figures.probe_pipelines import current_probes
from capacity.figures.zone_capacity import group_rooms
from capacity.groups.reading import load_group_definitions
from capacity.host_table import current_host_table
from capacity.models import HostCapacity
from console.base import PageData, may_view, verdict
from console.charts import TILE_LEVELS, Tile, natural, tile_map
from console.failover.what_dies import drill_url
from console.hosts.columns import CLOUD_EMPTY
from console.links import list_url
from console.pages import check_view, show_page
from core.text import count_text, gib_number, gib_text, memory_short, percent_text, plural
from failover.drill_models import FailureDrill
from failover.models import FailoverDecision
from hosts.models import Aggregate, Host, Instance
from journal.errors import NotReady
from scheduling.columns import BoolColumn, Int64Column
from scheduling.evaluation import PipelineRunError
from scheduling.table import HostTable

TABLE_SHOWN: Final = 100
RISK_BOUNDS: Final = (1, 2, 4, 8, 16)
MEASURES: Final[Mapping[str, str]] = {
    "free": "free memory",
    "stranded": "stranded memory: free, and no flavor group can take it",
    "reserved": "reserved memory: held for commitments, failover and VMs being placed",
    "risk": "VMs that the loss of the host would leave without any failover slot",
}
ARRANGEMENTS: Final[Mapping[str, str]] = {
    "rack": "rack",
    "group": "flavor groups that the host takes",
    "aggregate": "aggregate",
}
ANY_HOST: Final = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Zone:
    """The hosts of a zone as columns, parallel.

    Attributes:
        rows: int64[N], their rows in the table.
        left_memory_bytes: int64[N], what nobody takes or holds; 0 or more.
        held_memory_bytes: int64[N], what reservations hold.
        takers: For each host the flavor groups that it takes, by name; empty if not asked for.
        usable_memory_bytes: int64[N], the most that one flavor group can take; likewise.
    """

    table: HostTable
    name: str
    rows: Int64Column
    left_memory_bytes: Int64Column
    held_memory_bytes: Int64Column
    takers: Sequence[str] = ()
    usable_memory_bytes: Int64Column = field(default_factory=lambda: np.zeros(0, dtype=np.int64))

    @property
    def whole_memory_bytes(self) -> Int64Column:
        """Return int64[N], what each host has to promise."""
        column: Int64Column = self.table.eff_memory_bytes[self.rows]
        return column

    @property
    def names(self) -> list[str]:
        """Names of the hosts."""
        return [self.table.names[row] for row in self.rows.tolist()]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """What tiles show: for each host an amount, its words, and its shade.

    Attributes:
        cells: The amount and what it is a part of, of each host, as a table has them.
        headings: Of those cells.
    """

    amounts: list[int]
    words: list[str]
    levels: list[int]
    bad: BoolColumn
    cells: list[tuple[str, ...]]
    headings: tuple[str, ...]


def map_view(request: HttpRequest) -> HttpResponse:
    """Show the hosts of the zone that is asked for, of the first zone if none is."""
    check_view(request, Host, HostCapacity)
    table = current_host_table()
    zones = sorted({table.zones[code] for code in np.unique(table.zone[table.is_known]).tolist()})
    measures = dict(MEASURES)
    if not (may_view(request, FailoverDecision) and may_view(request, Instance)):
        del measures["risk"]
    arrangements = dict(ARRANGEMENTS)
    if not may_view(request, Aggregate):
        del arrangements["aggregate"]
    asked = {
        "zone": _chosen(request, "zone", zones),
        "show": _chosen(request, "show", list(measures)),
        "by": _chosen(request, "by", list(arrangements)),
    }
    page = PageData(
        zones=_choices(asked, "zone", {zone: zone or "no zone" for zone in zones}),
        measures=_choices(asked, "show", {word: word for word in measures}),
        arrangements=_choices(asked, "by", {word: word for word in arrangements}),
        zone=asked["zone"],
        measure=measures[asked["show"]],
        arranged=arrangements[asked["by"]],
        is_risk=asked["show"] == "risk",
        legend=_legend(is_risk=asked["show"] == "risk"),
        list_url=list_url("hosts.host", zone=asked["zone"]) if zones else list_url("hosts.host"),
        has_drills=asked["by"] == "rack" and may_view(request, FailureDrill),
        problem="",
        verdict=verdict("idle", "No host is known", CLOUD_EMPTY),
        groups=(),
        lines=(),
    )
    if zones:
        zone, page.problem = _with_groups(_zone(table, asked["zone"]), asked)
        _fill(page, zone, asked)
    return show_page(
        request,
        "admin/map_page.html",
        title=f"Map of {asked['zone']}" if asked["zone"] else "Map of hosts",
        model=Host,
        page=page,
        crumbs=(("Hosts", list_url("hosts.host")), ("Map", "")),
    )


def _chosen(request: HttpRequest, name: str, words: Sequence[str]) -> str:
    word = request.GET.get(name, "")
    return word if word in words else next(iter(words), "")


def _choices(
    asked: Mapping[str, str], name: str, words: Mapping[str, str]
) -> list[tuple[bool, str, str]]:
    """Return whether each is chosen, what it is called, and its address."""
    return [
        (word == asked[name], label, "?" + urlencode({**asked, name: word}))
        for word, label in words.items()
    ]


def _zone(table: HostTable, name: str) -> Zone:
    code = table.zones.index(name)
    rows = np.flatnonzero((table.zone == code) & table.is_known)
    held = (
        table.committed_memory_bytes[rows]
        + table.failover_memory_bytes[rows]
        + table.in_flight_memory_bytes[rows]
    )
    left = table.eff_memory_bytes[rows] - table.alloc_memory_bytes[rows] - held
    return Zone(
        table=table,
        name=name,
        rows=rows,
        left_memory_bytes=np.maximum(left, 0),
        held_memory_bytes=held,
    )


def _with_groups(zone: Zone, asked: Mapping[str, str]) -> tuple[Zone, str]:
    """Return the zone with what flavor groups can take, where that is shown; or why it is not."""
    if asked["show"] != "stranded" and asked["by"] != "group":
        return zone, ""
    try:
        groups = load_group_definitions()
        rooms = group_rooms(zone.table, zone.name, groups.values(), current_probes())
    except NotReady as error:
        return zone, error.message
    except PipelineRunError as error:
        return zone, f"The hosts cannot be judged: {error}"
    if not rooms:
        return zone, "There is no flavor group."
    row_of = {name: row for row, name in enumerate(rooms[0].names)}
    order = np.array([row_of[name] for name in zone.names], dtype=np.int64)
    usable = np.max([room.usable_memory_bytes[order] for room in rooms], axis=0)
    admitted = np.array([room.is_admitted[order] for room in rooms])
    names = list(groups)
    takers = [
        ", ".join(names[place] for place in np.flatnonzero(column).tolist())
        for column in admitted.T
    ]
    return (
        replace(zone, takers=takers, usable_memory_bytes=usable),
        "",
    )


def _fill(page: PageData, zone: Zone, asked: Mapping[str, str]) -> None:
    names = zone.names
    shown = _SHOWING[asked["show"]](zone)
    ids = zone.table.host_ids[zone.rows].tolist()
    before, after = reverse("admin:hosts_host_change", args=[ANY_HOST]).split(f"/{ANY_HOST}/")
    urls = [f"{before}/{key}/{after}" for key in ids]
    closed = (~zone.table.state_ok[zone.rows]).tolist()
    bad = shown.bad.tolist()
    racks = set(zone.table.building_blocks) if page.has_drills else set()
    drills = drill_url(zone=zone.name)
    members: dict[str, list[int]] = {}
    for place, title in enumerate(_titles(zone, asked["by"])):
        members.setdefault(title, []).append(place)
    page.groups = [
        PageData(
            title=title,
            note=plural(len(places), "host"),
            drill_url=f"{drills}&{urlencode({'rack': title})}" if title in racks else "",
            picture=tile_map(
                f"{title}: {plural(len(places), 'host')} by {page.measure}",
                [
                    Tile(
                        words=f"{names[place]}: {shown.words[place]}"
                        f"{', takes nothing now' * closed[place]}",
                        url=urls[place],
                        level=shown.levels[place],
                        is_closed=closed[place],
                        is_bad=bad[place],
                    )
                    for place in sorted(places, key=lambda place: natural(names[place]))
                ],
            ),
        )
        for title, places in sorted(members.items(), key=lambda pair: natural(pair[0]))
    ]
    page.verdict = _verdict(zone, asked["show"], shown, problem=page.problem)
    page.count = plural(len(names), "host")
    page.sum = plural(sum(shown.amounts), "VM") if page.is_risk else gib_text(sum(shown.amounts))
    most = sorted(range(len(names)), key=lambda place: (-shown.amounts[place], names[place]))
    page.lines = [
        PageData(
            name=names[place],
            url=urls[place],
            cells=shown.cells[place],
            state="takes nothing now" if closed[place] else "ready",
        )
        for place in most[:TABLE_SHOWN]
    ]
    page.headings = shown.headings
    page.hidden = max(0, len(names) - TABLE_SHOWN)


def _verdict(zone: Zone, measure: str, shown: Shown, *, problem: str) -> PageData:
    """Say how much there is of what is shown, where most of it is, and what takes nothing."""
    closed = int((~zone.table.state_ok[zone.rows]).sum())
    places, hosts = zone.name or "hosts without a zone", len(shown.amounts)
    ready = "All hosts take VMs." if not closed else f"{closed:,} of {hosts:,} hosts take none now."
    some = [amount for amount in shown.amounts if amount]
    most = max(range(hosts), key=lambda place: (shown.amounts[place], -place))
    where = f" Most: {zone.names[most]} with {shown.words[most]}." if some else ""
    tell = partial(verdict, sentence=f"{ready}{where}")
    if measure == "risk":
        bare = f"{plural(sum(some), 'VM')} on {plural(len(some), 'host')}"
        return (
            tell("bad", f"{places}: {bare} would have no slot if their host were lost")
            if some
            else tell("ok", f"{places}: every VM that is owed a failover slot has one at least")
        )
    if measure == "stranded" and problem:
        return tell("idle", f"{places}: it is not known what is stranded")
    total, whole = sum(some), int(zone.whole_memory_bytes.sum())
    share = f"{gib_text(total)} ({percent_text(total, whole)}) of {gib_text(whole)}"
    on = f"on {plural(len(some), 'host')}"
    if measure == "free":
        return tell("ok" if some else "bad", f"{places}: {share} are free, {on}")
    if measure == "stranded":
        return tell("warn" if some else "ok", f"{places}: {share} are stranded, {on}")
    return tell("ok", f"{places}: {share} are reserved, {on}")


def _titles(zone: Zone, arrangement: str) -> Sequence[str]:
    """Return under which heading each host stands."""
    table = zone.table
    if arrangement == "group":
        return [title or "no flavor group" for title in zone.takers] or ["not known"] * len(
            zone.rows
        )
    if arrangement == "aggregate":
        return _aggregates(zone)
    codes = table.building_block[zone.rows].tolist()
    return [table.building_blocks[code] or "no rack" for code in codes]


def _aggregates(zone: Zone) -> Sequence[str]:
    """Return each host's first aggregate by name that is none of a zone."""
    first: dict[str, str] = {}
    rows = Aggregate.objects.exclude(metadata__has_key="availability_zone").order_by("-name", "-pk")
    for name, hosts in rows.values_list("name", "host_names"):
        first |= dict.fromkeys(hosts, name)
    return [first.get(name, "no aggregate") for name in zone.names]


def _memory(zone: Zone, column: Int64Column) -> Shown:
    whole = np.maximum(zone.whole_memory_bytes, 1)
    levels = np.where(column <= 0, 0, np.minimum(-(-column * TILE_LEVELS // whole), TILE_LEVELS))
    amounts, wholes = column.tolist(), zone.whole_memory_bytes.tolist()
    return Shown(
        amounts=amounts,
        words=[
            f"{memory_short(amount)} of {memory_short(most)} ({percent_text(amount, most)})"
            for amount, most in zip(amounts, wholes, strict=True)
        ],
        levels=levels.tolist(),
        bad=np.zeros(len(zone.rows), dtype=np.bool_),
        cells=[
            (gib_number(amount), gib_number(most), percent_text(amount, most))
            for amount, most in zip(amounts, wholes, strict=True)
        ],
        headings=("Memory, GiB", "Of all its memory, GiB", "Share"),
    )


def _stranded(zone: Zone) -> Shown:
    usable = zone.usable_memory_bytes if len(zone.usable_memory_bytes) else zone.left_memory_bytes
    return _memory(zone, np.maximum(zone.left_memory_bytes - usable, 0))


def _risk(zone: Zone) -> Shown:
    """Return how many VMs of each host have no slot although some are owed to them."""
    vm = Instance.objects.filter(openstack_id=OuterRef("vm_uuid")).values("host_id")[:1]
    counted = (
        FailoverDecision.objects.filter(zone=zone.name, current_count=0)
        .annotate(on_host=Subquery(vm, output_field=IntegerField()))
        .order_by()
        .values("on_host")
        .annotate(vms=Count("pk"), key=F("on_host"))
    )
    bare = {row["key"]: row["vms"] for row in counted}
    amounts = [bare.get(key, 0) for key in zone.table.host_ids[zone.rows].tolist()]
    return Shown(
        amounts=amounts,
        words=[f"{plural(vms, 'VM')} without any failover slot" for vms in amounts],
        levels=[sum(vms >= bound for bound in RISK_BOUNDS) for vms in amounts],
        bad=np.array(amounts, dtype=np.int64) > 0,
        cells=[(count_text(vms),) for vms in amounts],
        headings=("VMs without any failover slot",),
    )


_SHOWING: Final[Mapping[str, Callable[[Zone], Shown]]] = {
    "free": lambda zone: _memory(zone, zone.left_memory_bytes),
    "stranded": _stranded,
    "reserved": lambda zone: _memory(zone, zone.held_memory_bytes),
    "risk": _risk,
}


def _legend(*, is_risk: bool) -> list[tuple[int, str]]:
    """Return shades and what each stands for."""
    if is_risk:
        between = [
            plural(low, "VM") if high - low == 1 else f"{low} to {high - 1} VMs"
            for low, high in pairwise(RISK_BOUNDS)
        ]
        words = ["no VM", *between, f"{RISK_BOUNDS[-1]} VMs or more"]
    else:
        share = 100 // TILE_LEVELS
        words = ["none", *(f"up to {step * share} % of the host" for step in range(1, 6))]
    return list(enumerate(words))
