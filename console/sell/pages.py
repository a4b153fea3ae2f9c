"""``/admin/sell/``: what can be sold of each group in each zone, and a page for each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from itertools import accumulate
from typing import Final

from django.http import HttpRequest, HttpResponse
from django.urls import reverse

from capacity.figures.probe_pipelines import current_probes
from capacity.figures.zone_capacity import group_room
from capacity.groups.group_settings import GroupSettings, settings_for_group
from capacity.groups.reading import load_group_definitions, load_group_settings
from capacity.host_table import current_host_table
from capacity.models import GroupCapacity
from commitments.models import Commitment
from commitments.selectors.timeline import known_memory_changes
from console.base import PageData, badge, may_view, verdict
from console.links import list_url, row_url
from console.pages import answered, check_view, seen_row, show_page
from console.sell.room import room_page, sellable_bytes_of
from console.sell.what_if import Asked, WhatIfForm, ask_what_if
from core.text import count_text, gib_text, moment_text, relative_text
from hosts.models import Host, PlannedHostChange
from journal.clock import database_now
from journal.errors import NotReady
from scheduling.evaluation import PipelineRunError
from scheduling.resources import MIB

CHANGES_SHOWN: Final = 12
ROWS_SHOWN: Final = 500
PLACES_NAMED: Final = 5


def sell_url(row: GroupCapacity) -> str:
    """Return the address of the page that says what can be sold of a group in a zone."""
    return reverse("headroom_sell_group", args=[row.pk])


def sell_list_view(request: HttpRequest) -> HttpResponse:
    """Show each group and zone with what a request for it would get."""
    check_view(request, GroupCapacity)
    now = database_now()
    configured = load_group_settings()
    rows = list(GroupCapacity.objects.order_by("group_name", "zone")[:ROWS_SHOWN])
    sellable = {row.pk: sellable_bytes_of(row, configured) for row in rows}
    page = PageData(
        verdict=_verdict(rows, sellable),
        lines=[
            PageData(
                group=row.group_name,
                zone=row.zone,
                url=sell_url(row),
                sellable=gib_text(sellable[row.pk]),
                share=gib_text(row.exclusively_free_memory_bytes),
                held=gib_text(row.reserved_unused_memory_bytes),
                running=gib_text(row.running_memory_bytes),
                installed=gib_text(row.total_memory_bytes),
                state=badge("ok", "ready")
                if row.is_ready
                else badge("warn", row.ready_reason or "not computed yet", row.ready_message),
                age=relative_text(row.computed_at, now) if row.computed_at else "not computed yet",
            )
            for row in rows
        ],
        is_cut=len(rows) == ROWS_SHOWN,
        rows_url=list_url("capacity.groupcapacity"),
    )
    return show_page(
        request, "admin/sell_list.html", title="What can be sold", model=GroupCapacity, page=page
    )


def _verdict(rows: Sequence[GroupCapacity], sellable: Mapping[int, int]) -> PageData:
    """Say where something can be sold, where most, and where nothing is left."""
    if not rows:
        return verdict(
            "idle",
            "It is not computed yet what can be sold",
            "A worker does it, once there are hosts and flavor groups: ./run manage connect CLOUD"
            " reads the first and proposes the others (docs/first-day.md).",
        )
    some = [row for row in rows if sellable[row.pk] > 0]
    empty = [_place(row) for row in rows if row.total_memory_bytes and sellable[row.pk] <= 0]
    hidden = len(empty) - PLACES_NAMED
    named = ", ".join(empty[:PLACES_NAMED]) + (f" and {hidden:,} more" if hidden > 0 else "")
    sentence = f"Nothing is left of {named}." if empty else ""
    if not some:
        return verdict("bad", "Nothing can be sold now", sentence)
    most = max(some, key=lambda row: sellable[row.pk])
    return verdict(
        "warn" if empty else "ok",
        f"Most can be sold of {_place(most)}: {gib_text(sellable[most.pk])}",
        sentence or "Something is left of every group that has hosts, in each of its zones.",
    )


def _place(row: GroupCapacity) -> str:
    return f"{row.group_name} in {row.zone}"


def sell_view(request: HttpRequest, pk: int) -> HttpResponse:
    """Show what can be sold of a group in a zone, what limits it, when more fits, and what if."""
    row = seen_row(request, GroupCapacity, pk)
    now = database_now()
    configured = load_group_settings()
    page = PageData(
        group=row.group_name,
        zone=row.zone,
        room=None,
        problem="",
        figures=_figures(row, configured, now),
        figures_url=row_url(row),
        changes=_changes(request, row, now),
        changes_url=list_url(
            "commitments.commitment", flavor_group_name__exact=row.group_name, zone=row.zone
        ),
        planned=_planned(request, row, now),
        planned_url=list_url("hosts.plannedhostchange"),
        form=None,
        answer=None,
        answer_problem="",
    )
    try:
        group = load_group_definitions().get(row.group_name)
    except NotReady:
        group = None
    if group is None or group.smallest.memory_bytes <= 0:
        page.problem = "Nothing is sold of this group: it is retired, or not built yet."
    else:
        unit_bytes = settings_for_group(configured, row.group_name).ram_unit_mib * MIB
        try:
            room = group_room(current_host_table(), row.zone, group, current_probes())
        except PipelineRunError as error:
            page.problem = f"The hosts cannot be judged: {error}"
        else:
            page.room = room_page(room, group, unit_bytes=unit_bytes)
        if may_view(request, Commitment) and may_view(request, Host):
            page.form = _form(request, page)
            if page.form.is_bound and page.form.is_valid():
                asked = Asked.of(page.form, group, row.zone, unit_bytes=unit_bytes, now=now)
                page.answer, page.answer_problem = answered(lambda: ask_what_if(asked, now=now))
    return show_page(
        request,
        "admin/sell_page.html",
        title=f"Sell {row.group_name} in {row.zone}",
        model=GroupCapacity,
        page=page,
        crumbs=(
            ("Sell", reverse("headroom_sell")),
            (f"{row.group_name} in {row.zone}", ""),
        ),
    )


def _form(request: HttpRequest, page: PageData) -> WhatIfForm:
    asked = any(request.GET.get(name) for name in WhatIfForm.base_fields)
    like = page.room.largest.name if page.room and page.room.largest else ""
    filled = {**request.GET.dict(), "like": request.GET.get("like") or like}
    form = WhatIfForm(filled if asked else None, initial={"like": like})
    for field in form.fields.values():
        field.widget.attrs["class"] = "hr-field"
    return form


def _figures(
    row: GroupCapacity, configured: Mapping[str, GroupSettings], now: datetime
) -> tuple[tuple[str, str, str], ...]:
    """Return other figures of the group with what each is, so that nobody mistakes them."""
    age = relative_text(row.computed_at, now) if row.computed_at else "not computed yet"
    return (
        (
            "Sellable when last computed",
            gib_text(sellable_bytes_of(row, configured)),
            f"the same figure, {age}; lists and metrics show this one",
        ),
        (
            "Share told to Limes",
            gib_text(row.exclusively_free_memory_bytes),
            "free room, split among the groups that could take it: no byte is offered twice",
        ),
        (
            "Held and unused",
            gib_text(row.reserved_unused_memory_bytes),
            "slots of commitments without VMs in them: sold already",
        ),
        ("Running", gib_text(row.running_memory_bytes), f"{count_text(row.running_instances)} VMs"),
        ("Installed", gib_text(row.total_memory_bytes), "what empty hosts would hold of it"),
    )


def _changes(request: HttpRequest, row: GroupCapacity, now: datetime) -> list[PageData] | None:
    """Return what is known to come back or to be taken, soonest first; None if not to be seen."""
    if not may_view(request, Commitment):
        return None
    known = known_memory_changes(row.zone, row.group_name, now=now)[:CHANGES_SHOWN]
    sums = accumulate(amount for _, amount in known)
    return [
        PageData(
            at=moment_text(at),
            ago=relative_text(at, now),
            back=gib_text(amount) if amount > 0 else "",
            taken=gib_text(-amount) if amount < 0 else "",
            sum=("+" if total >= 0 else "-") + gib_text(abs(total)),
        )
        for (at, amount), total in zip(known, sums, strict=True)
    ]


def _planned(request: HttpRequest, row: GroupCapacity, now: datetime) -> list[str]:
    if not (may_view(request, PlannedHostChange) and may_view(request, Host)):
        return []
    changes = PlannedHostChange.objects.filter(host__zone=row.zone, at__gt=now)
    return [
        f"{moment_text(one.at)} ({relative_text(one.at, now)}): "
        + (
            f"{one.host.name} is drained"
            if one.edit == "drain"
            else f"{count_text(one.host_count)} more like {one.host.name}"
        )
        for one in changes.select_related("host").order_by("at", "pk")[:CHANGES_SHOWN]
    ]
