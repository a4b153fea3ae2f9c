"""What the admin's first page shows: what needs a person, then the region at a glance.

One query per card, however many rows stand behind it.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

from django.conf import settings
from django.db import models
from django.db.models import Case, Count, F, Q, Sum, When
from django.http import HttpRequest
from django.urls import reverse

from capacity.figures.group_capacity import known_zones
from capacity.figures.history_reads import recent_history
from capacity.figures.zone_rooms import zone_sums
from capacity.groups.reading import load_group_settings
from capacity.models import (
    CapacityHistory,
    FlavorGroup,
    FlavorGroupSnapshot,
    GroupCapacity,
    HostCapacity,
)
from commitments.domain.statuses import LIVE_STATUSES, CommitmentStatus, ResourceType
from commitments.models import Commitment, SyncRun
from commitments.services.import_runs import SOURCE as REGION_FILE
from console.attention import attention
from console.base import PageData, badge, may_view
from console.capacity.page_data import group_bar, legend
from console.charts import Segment, stacked_bar
from console.commitments.presentation import (
    commitment_name,
    condition_title,
    condition_tone,
    why_text,
)
from console.hosts.columns import READY_HOST, with_project_name
from console.links import list_url, row_url
from console.sell.room import sellable_bytes_of
from console.time_charts import ZONE_LAYERS, history_moments, time_chart
from core.text import (
    NOTHING,
    count_text,
    duration_text,
    gib_text,
    memory_short,
    percent_text,
    plural,
    relative_text,
    time_text,
)
from journal.clock import database_now
from journal.models import AuditEntry, Heartbeat

UNFULFILLED_SHOWN = 8
GROUPS_SHOWN = 60
ZONES_DRAWN = 6
RUNS_SHOWN = 4
IMPORT_ACTION = "region_imported"
READY_ON_HOST = Q(
    **{f"host__{lookup}": wanted for lookup, wanted in READY_HOST.children}  # type: ignore[misc]  # Q's own pairs
)


def dashboard_callback(request: HttpRequest, context: dict[str, Any]) -> dict[str, Any]:
    """Add the dashboard to the index page of the admin (``UNFOLD["DASHBOARD_CALLBACK"]``)."""
    context["title"] = "Overview"
    context["dashboard"] = build_dashboard(
        database_now(), may_see=lambda model: may_view(request, model)
    )
    return context


def build_dashboard(now: datetime, *, may_see: Callable[[type[models.Model]], bool]) -> PageData:
    """Read every card that may be seen: what shows figures of a model needs its view permission."""
    sees_commitments = may_see(Commitment)
    states, open_count = _states() if sees_commitments else (None, 0)
    groups = _groups(now) if may_see(GroupCapacity) else None
    return PageData(
        attention=attention(now, may_see),
        health=_health(now, may_see),
        unfulfilled=_unfulfilled(now) if sees_commitments else None,
        unfulfilled_note=plural(open_count, "live commitment") + " not held as promised",
        unfulfilled_url=list_url("commitments.commitment", fulfilled="no"),
        states=states,
        zones=_zones() if may_see(HostCapacity) else None,
        zone_legend=legend("vms", "committed", "failover", "in_flight", "free"),
        history=_history(now) if may_see(CapacityHistory) else None,
        groups=None if groups is None else groups[:GROUPS_SHOWN],
        groups_note=f"first {GROUPS_SHOWN}" if len(groups or ()) > GROUPS_SHOWN else "",
        group_legend=(
            ("vms", "running VMs"),
            ("committed", "reserved, unused"),
            ("free", "share told to Limes"),
            ("other", "used by other groups or not usable"),
        ),
    )


def _health(now: datetime, may_see: Callable[[type[models.Model]], bool]) -> tuple[PageData, ...]:
    about = (
        (Heartbeat, _beat_line), (AuditEntry, _import_line), (FlavorGroup, _snapshot_line)
    )  # fmt: skip
    lines = [line(now) for model, line in about if may_see(model)]
    newest = SyncRun.objects.order_by("-id")
    if may_see(AuditEntry):  # the import has a line of its own
        newest = newest.exclude(source=REGION_FILE)
    runs = newest[:RUNS_SHOWN] if may_see(SyncRun) else ()
    for run in runs:
        finished = f"{time_text(run.finished_at, now)}" if run.finished_at else "still running"
        is_bad = bool(run.error_code)
        tone = "bad" if is_bad else "ok" if run.finished_at else "warn"
        word = run.error_code or run.outcome or "running"
        lines.append(
            PageData(
                name=f"Run: {run.source}",
                state=badge(tone, word, run.message),
                detail=finished,
                url=row_url(run),
            )
        )
    return tuple(lines)


def _beat_line(now: datetime) -> PageData:
    beat = Heartbeat.objects.filter(name="beat").first()
    url = list_url("journal.heartbeat")
    name = "Background work"
    if beat is None:
        detail = "no sign of life yet: retries and refreshes do not run"
        return PageData(name=name, state=badge("bad", "never seen"), detail=detail, url=url)
    age = now - beat.beaten_at
    limit_seconds = settings.HEADROOM.beat_max_age_seconds
    is_alive = age.total_seconds() <= limit_seconds
    state = badge("ok", "alive") if is_alive else badge("bad", "silent")
    detail = f"beat and worker seen {duration_text(age)} ago (limit {limit_seconds} s)"
    return PageData(name=name, state=state, detail=detail, url=url)


def _import_line(now: datetime) -> PageData:
    entry = AuditEntry.objects.filter(action=IMPORT_ACTION).order_by("-id").first()
    return PageData(
        name="Last import",
        state=badge("ok", "done") if entry else badge("idle", "none yet"),
        detail=time_text(entry.created_at, now) if entry else NOTHING,
        url=list_url("journal.auditentry", action=IMPORT_ACTION),
    )


def _snapshot_line(now: datetime) -> PageData:
    snapshot = FlavorGroupSnapshot.objects.first()
    is_ready = snapshot is not None and snapshot.is_ready
    return PageData(
        name="Flavor groups",
        state=badge("ok", "ready") if is_ready else badge("bad", "not built yet"),
        detail=f"built {time_text(snapshot.last_extracted_at, now)}" if snapshot else NOTHING,
        url=list_url("capacity.flavorgroup"),
    )


def unfulfilled_filter(now: datetime) -> Q:
    """Return the condition of live commitments that are not accepted."""
    live = Q(state__in=LIVE_STATUSES) & (Q(end_time__isnull=True) | Q(end_time__gt=now))
    return live & (Q(ready_status__isnull=True) | Q(ready_status=False))


def _unfulfilled(now: datetime) -> tuple[PageData, ...]:
    rows = with_project_name(Commitment.objects.filter(unfulfilled_filter(now)))
    return tuple(
        PageData(
            title=commitment_name(row),
            url=row_url(row),
            project=getattr(row, "project_name", None) or row.project_id,
            state=row.get_state_display(),
            condition=badge(condition_tone(row), condition_title(row), row.ready_message),
            sentence=row.ready_message or why_text(row, now),
        )
        for row in rows.order_by("ready_changed_at", "id")[:UNFULFILLED_SHOWN]
    )


def _states() -> tuple[tuple[PageData, ...], int]:
    counted = (
        Commitment.objects.order_by()
        .values("state")
        .annotate(count=Count("pk"), accepted=Count("pk", filter=Q(ready_status=True)))
    )
    by_state = {entry["state"]: entry for entry in counted}
    longest = max((entry["count"] for entry in by_state.values()), default=0)
    lines = []
    open_total = 0
    for state in CommitmentStatus:
        entry = by_state.get(state, {"count": 0, "accepted": 0})
        is_live = state in LIVE_STATUSES
        open_count = entry["count"] - entry["accepted"] if is_live else 0
        open_total += open_count
        lines.append(
            PageData(
                state=state.value,
                url=list_url("commitments.commitment", state__exact=state.value),
                count=count_text(entry["count"]),
                accepted=count_text(entry["accepted"]) if is_live else NOTHING,
                open_count=count_text(open_count) if is_live else NOTHING,
                bar=stacked_bar(
                    [
                        Segment(
                            kind="own_vms",
                            amount_units=entry["accepted"],
                            text=count_text(entry["accepted"]),
                            label="held",
                        ),
                        Segment(
                            kind="failover" if is_live else "other",
                            amount_units=entry["count"] - entry["accepted"],
                            text=count_text(entry["count"] - entry["accepted"]),
                            label="not held" if is_live else "nothing to hold",
                        ),
                    ],
                    capacity_units=longest,
                    title=f"{state.value}: {entry['count']}",
                ),
            )
        )
    return tuple(lines), open_total


def _zones() -> tuple[PageData, ...]:
    counted = zone_sums().annotate(ready_hosts=Count("pk", filter=READY_ON_HOST))
    return tuple(_zone_summary(zone) for zone in counted)


def _zone_summary(zone: dict[str, Any]) -> PageData:
    segments = [
        Segment(kind=kind, amount_units=zone[kind], text=memory_short(zone[kind]))
        for kind in ("vms", "committed", "failover", "in_flight", "free")
    ]
    name = zone["zone"] or "no zone"
    used = zone["installed"] - zone["free"]
    return PageData(
        name=name,
        zone=name,
        url=list_url("hosts.host", zone=zone["zone"]),
        note=f"{plural(zone['hosts'], 'host')}, {zone['ready_hosts']:,} ready",
        bar=stacked_bar(
            segments,
            capacity_units=zone["installed"],
            title=f"{name}: memory {percent_text(used, zone['installed'])} in use or held",
        ),
        installed=gib_text(zone["installed"]),
        running=gib_text(zone["vms"]),
        committed=gib_text(zone["committed"]),
        reserved_unused=gib_text(zone["failover"] + zone["in_flight"]),
        free=gib_text(zone["free"]),
        extra=f"{count_text(zone['free_vcpus'])} of {count_text(zone['cores'])}",
    )


def _history(now: datetime) -> tuple[PageData, ...]:
    zones = sorted(known_zones())[:ZONES_DRAWN]
    rows = recent_history(zones=zones, groups=[""], now=now)
    return tuple(
        time_chart(
            f"zone-{number}",
            f"Memory of {zone}",
            history_moments(rows.get((zone, ""), ())),
            layers=ZONE_LAYERS,
            total="total",
        )
        for number, zone in enumerate(zones)
    )


def _groups(now: datetime) -> tuple[PageData, ...]:
    known = GroupCapacity.objects.exclude(is_ready=True, total_memory_bytes=0)  # has no hosts
    rows = known.order_by("group_name", "zone")[: GROUPS_SHOWN + 1]
    promised = _promised_memory(now)
    configured = load_group_settings()
    return tuple(
        _group_summary(
            row,
            promised.get((row.group_name, row.zone), 0),
            sellable_bytes_of(row, configured),
            now,
        )
        for row in rows
    )


def _promised_memory(now: datetime) -> dict[tuple[str, str], int]:
    """Return memory committed by group and zone, in bytes: what reservations are made for.

    Pending commitments count once they were accepted, as their slots do.
    """
    amount = Case(
        When(accepted_amount__isnull=False, then=F("accepted_amount")),
        When(state=CommitmentStatus.PENDING, then=0),
        default=F("requested_amount"),
    )
    sums = (
        Commitment.objects.filter(
            Q(end_time__isnull=True) | Q(end_time__gt=now),
            resource_type=ResourceType.MEMORY,
            state__in=LIVE_STATUSES,
        )
        .order_by()
        .values_list("flavor_group_name", "zone")
        .annotate(promised=Sum(amount))
    )
    return {(group, zone): int(promised) for group, zone, promised in sums}


def _group_summary(
    row: GroupCapacity, promised_bytes: int, sellable_bytes: int, now: datetime
) -> PageData:
    note = (
        f"computed {relative_text(row.computed_at, now)}" if row.computed_at else "not computed yet"
    )
    return PageData(
        name=row.group_name,
        zone=row.zone,
        url=row_url(row),
        note=note,
        bar=group_bar(row),
        installed=gib_text(row.total_memory_bytes),
        running=gib_text(row.running_memory_bytes),
        committed=gib_text(promised_bytes),
        reserved_unused=gib_text(row.reserved_unused_memory_bytes),
        free=gib_text(row.exclusively_free_memory_bytes),
        extra=f"{row.exclusively_free_slots:,}",
        sellable=gib_text(sellable_bytes),
        sell_url=reverse("headroom_sell_group", args=[row.pk]),
    )
