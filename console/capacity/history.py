"""Admin of the history of zones, groups and hosts."""

from __future__ import annotations

from django.contrib import admin

from capacity.models import CapacityHistory, HostHistory
from console.base import SystemOwnedAdmin, badge, column, shown
from console.hosts.columns import ZoneFilter
from core.text import NOTHING, gib_text

MADE_UP = shown(
    "made up", lambda row: badge("warn", "made up") if row.is_made_up else NOTHING, "is_made_up"
)


@admin.register(CapacityHistory)
class CapacityHistoryAdmin(SystemOwnedAdmin[CapacityHistory]):
    """What zones and groups had, hour by hour and day by day."""

    owner_note = (
        "Written once an hour from what the dashboard shows; days are means of their hours. What "
        "nobody looked at has no row."
    )
    empty_note = (
        "No hour was written yet: a worker writes the first within five minutes, once there are "
        "hosts (./run serve worker, ./run serve beat)."
    )
    list_display = (
        "at",
        "span",
        "zone",
        "group",
        "total",
        "covered",
        "payg",
        "unused",
        "free",
        "exclusive",
        MADE_UP,
    )
    list_filter = ("span", ZoneFilter)
    search_fields = ("=group_name",)
    search_help_text = "Whole name of a flavor group"

    at = column("at", "from")
    group = shown("group", lambda row: row.group_name or "whole zone", "group_name")
    total = shown("total", lambda row: gib_text(row.total_memory_bytes), "total_memory_bytes")
    covered = shown(
        "VMs in commitments",
        lambda row: gib_text(row.covered_memory_bytes),
        "covered_memory_bytes",
    )
    payg = shown("other VMs", lambda row: gib_text(row.payg_memory_bytes), "payg_memory_bytes")
    unused = shown(
        "held, unused",
        lambda row: gib_text(row.reserved_unused_memory_bytes),
        "reserved_unused_memory_bytes",
    )
    free = shown("free", lambda row: gib_text(row.free_memory_bytes), "free_memory_bytes")
    exclusive = shown(
        "free for this group",
        lambda row: gib_text(row.exclusively_free_memory_bytes),
        "exclusively_free_memory_bytes",
    )


@admin.register(HostHistory)
class HostHistoryAdmin(SystemOwnedAdmin[HostHistory]):
    """What was on each host, day by day."""

    owner_note = "Written once a day from the rooms of the hosts."
    empty_note = (
        "No day was written yet: a worker writes the first once there are hosts (./run serve "
        "worker, ./run serve beat)."
    )
    list_display = (
        "day",
        "host_name",
        "effective",
        "allocated",
        "committed",
        "failover",
        MADE_UP,
    )
    search_fields = ("=host_name",)
    search_help_text = "Whole name of a host"

    effective = column("effective_memory_bytes")
    allocated = column("allocated_memory_bytes")
    committed = column("committed_memory_bytes")
    failover = column("failover_memory_bytes")
