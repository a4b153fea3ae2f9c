"""Admin of hosts with their room, and of host capacity rows."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.db.models import Count, F, OuterRef, QuerySet, Subquery
from django.db.models.functions import Coalesce, Greatest
from django.http import HttpRequest
from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString

from capacity.models import HostCapacity, HostHistory
from console.base import CheckedActions, Column, SystemOwnedAdmin, may_view, shown
from console.capacity.page_data import host_page, utilisation_bar
from console.failover.drain import check_drain_action
from console.failover.loss import loss_page
from console.hosts.columns import CLOUD_NOTE, ReadyFilter, TraitFilter, ZoneFilter, host_state_badge
from console.hosts.orders import ReasonForm, end_maintenance, evict_hosts, start_maintenance
from console.links import find_link, list_url, text_link
from console.time_charts import host_chart
from core.text import NOTHING, count_text, gib_text, memory_text, percent_text, time_text
from failover.models import FailoverDecision
from hosts.models import Host, Instance
from journal.clock import database_now

HELD = ("committed", "failover", "in_flight")


def amounts_text(memory_bytes: int, vcpus: int) -> SafeString:
    """Show memory over vCPUs in one cell; the exact memory on hover."""
    return format_html(
        '<span class="hr-amount" title="{}">{}<br><span class="hr-sub">{}</span></span>',
        memory_text(memory_bytes),
        gib_text(memory_bytes),
        count_text(vcpus, "vCPUs"),
    )


def room_amounts(host: Host, kind: str) -> SafeString | str:
    """Show one kind of use of a host's room; a dash for a host without capacity row."""
    room = getattr(host, "room", None)
    if room is None:
        return NOTHING
    return amounts_text(getattr(room, f"{kind}_memory_bytes"), getattr(room, f"{kind}_vcpus"))


def used_amounts(room: HostCapacity) -> tuple[int, int]:
    """Return memory in bytes and vCPUs that VMs take or reservations hold."""
    memory_bytes = room.allocated_memory_bytes
    vcpus = room.allocated_vcpus
    for kind in HELD:
        memory_bytes += getattr(room, f"{kind}_memory_bytes")
        vcpus += getattr(room, f"{kind}_vcpus")
    return memory_bytes, vcpus


def conditions_text(row: Host) -> str:
    """Show the conditions that a host reports, with why they stand so."""
    lines = []
    for kind, status in sorted(row.conditions.items()):
        why = row.condition_reasons.get(kind, {})
        told = ": ".join(why[key] for key in ("reason", "message") if why.get(key))
        lines.append(f"{kind} is {status}" + (f" ({told})" if told else ""))
    return "; ".join(lines) or NOTHING


def free_text(room: HostCapacity) -> SafeString:
    """Show what is left on a host; negative when over-subscribed."""
    memory_bytes, vcpus = used_amounts(room)
    return amounts_text(room.effective_memory_bytes - memory_bytes, room.effective_vcpus - vcpus)


def utilisation_cell(room: HostCapacity | None) -> SafeString | str:
    """Draw the memory of a host with its percentage."""
    if room is None:
        return NOTHING
    memory_bytes, _ = used_amounts(room)
    return format_html(
        '<span class="hr-bar-cell">{} {}</span>',
        utilisation_bar(room),
        percent_text(memory_bytes, room.effective_memory_bytes),
    )


@admin.register(Host)
class HostAdmin(SystemOwnedAdmin[Host], CheckedActions[Host]):
    """Hypervisors with what is used, held and free on them."""

    owner_note = CLOUD_NOTE
    change_form_before_template = "admin/host_page.html"
    list_display = (
        "name",
        "zone",
        "state_column",
        "utilisation",
        "vms",
        "effective",
        "allocated",
        "committed",
        "failover",
        "free",
    )
    list_filter = (ZoneFilter, ReadyFilter, "state", "status", "hypervisor_type", TraitFilter)
    search_fields = ("name", "service_host", "=openstack_id")
    search_help_text = "Name, service host, or whole OpenStack id"
    list_select_related = ("room",)
    actions = (  # type: ignore[assignment]  # those of this page
        check_drain_action,
        start_maintenance,
        evict_hosts,
        end_maintenance,
    )
    action_form = ReasonForm
    page_columns = (
        "name",
        "openstack_id",
        "service_host",
        "service_id",
        "zone",
        "state_column",
        "disabled_reason",
        "maintenance",
        "maintenance_reason",
        "conditions_column",
        "slots_held_off",
        "down_since",
        "terminating_since",
        "hypervisor_type",
        "cpu_arch",
        "os_version",
        "total_memory_bytes",
        "reserved_memory_bytes",
        "memory_ratio",
        "effective_memory_bytes",
        "total_vcpus",
        "reserved_vcpus",
        "vcpus_ratio",
        "effective_vcpus",
        "total_disk_gib",
        "reserved_disk_gib",
        "disk_ratio",
        "effective_disk_gib",
        "traits",
        "aggregates",
        "allowed_projects",
        "ordered_projects",
        "ordered_overcommit",
        "high_availability",
        "provider_inventories",
        "nested_providers",
        "generation",
        "created_at",
        "updated_at",
    )

    def has_order_permission(self, request: HttpRequest) -> bool:
        """Whether the user may take hosts out of service."""
        return bool(request.user.has_perm("hosts.change_host"))

    def get_queryset(self, request: HttpRequest) -> QuerySet[Host]:
        """Read hosts with their number of VMs."""
        on_host = Instance.objects.filter(host=OuterRef("pk")).order_by().values("host")
        counted = on_host.annotate(count=Count("pk")).values("count")
        annotated: QuerySet[Host] = (
            super().get_queryset(request).annotate(vm_count=Coalesce(Subquery(counted), 0))
        )
        return annotated

    def page_parts(self, request: HttpRequest, row: Host) -> dict[str, Any]:
        """Show the page with room, slots and VMs."""
        room = getattr(row, "room", None)
        sees = may_view(request, HostHistory)
        return {
            "page": host_page(row),
            "state": host_state_badge(row),
            "since": time_text(row.down_since, database_now()) if row.down_since else "",
            "drain_url": reverse("headroom_host_drain", args=[row.pk]),
            "loss": loss_page(row) if may_view(request, FailoverDecision) else None,
            "chart": host_chart(row.name, room, now=database_now()) if sees else None,
        }

    state_column = shown("ready", host_state_badge, "state")
    conditions_column = shown("conditions", conditions_text)

    @admin.display(description="VMs", ordering="vm_count")
    def vms(self, row: Host) -> SafeString:
        """Link to the VMs on the host."""
        count = getattr(row, "vm_count", 0)
        return text_link(list_url("hosts.instance", host__id__exact=row.pk), count_text(count))

    effective = shown(
        "effective",
        lambda row: amounts_text(row.effective_memory_bytes, row.effective_vcpus),
        "effective_memory_bytes",
    )
    allocated = shown(
        "allocated", lambda row: room_amounts(row, "allocated"), "room__allocated_memory_bytes"
    )
    committed = shown(
        "committed", lambda row: room_amounts(row, "committed"), "room__committed_memory_bytes"
    )
    failover = shown(
        "failover", lambda row: room_amounts(row, "failover"), "room__failover_memory_bytes"
    )

    @admin.display(description="free")
    def free(self, row: Host) -> SafeString | str:
        """Show what is left; negative when over-subscribed."""
        room = getattr(row, "room", None)
        return NOTHING if room is None else free_text(room)

    utilisation = shown(
        "memory used",
        lambda row: utilisation_cell(getattr(row, "room", None)),
        sum((F(f"room__{kind}_memory_bytes") for kind in HELD), F("room__allocated_memory_bytes"))
        * 1000
        / Greatest(F("room__effective_memory_bytes"), 1),
    )

    @admin.display(description="aggregates")
    def aggregates(self, row: Host) -> SafeString | str:
        """Link to the aggregates."""
        links = [find_link("aggregate", uuid) for uuid in row.aggregate_uuids]
        return SafeString(", ".join(links)) if links else NOTHING


def _amounts(part: str) -> Column:
    """Return the column of the memory and vCPUs of a part of the room."""
    memory, vcpus = f"{part}_memory_bytes", f"{part}_vcpus"
    return shown(
        part.replace("_", " "),
        lambda row: amounts_text(getattr(row, memory), getattr(row, vcpus)),
        memory,
    )


@admin.register(HostCapacity)
class HostCapacityAdmin(SystemOwnedAdmin[HostCapacity]):
    """The truth about each host's room."""

    owner_note = (
        "Kept by the transactions that change reservations; a block is taken only where it fits. "
        "Changing a number here would break every promise made from it."
    )
    list_display = (
        "host_name",
        "zone",
        "effective",
        "allocated",
        "committed",
        "failover",
        "in_flight",
        "free",
        "utilisation",
    )
    list_filter = (ZoneFilter,)
    search_fields = ("host__name",)
    search_help_text = "Host name"
    list_select_related = ("host",)
    ordering = ("host__name",)

    host_name = shown("host", lambda row: row.host.name, "host__name")
    effective = _amounts("effective")
    allocated = _amounts("allocated")
    committed = _amounts("committed")
    failover = _amounts("failover")
    in_flight = _amounts("in_flight")
    free = shown("free", free_text)
    utilisation = shown("memory used", utilisation_cell)
