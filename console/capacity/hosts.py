"""Admin of hosts with their room, and of host capacity rows."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from django.contrib import admin
from django.db.models import Count, F, OuterRef, QuerySet, Subquery, prefetch_related_objects
from django.db.models.expressions import CombinedExpression
from django.db.models.functions import Coalesce, Greatest
from django.http import HttpRequest
from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString

from capacity.models import HostCapacity, HostHistory
from capacity.offboarding import listed_state, with_holdings
from console.base import (
    CheckedActions,
    Column,
    PageData,
    SystemOwnedAdmin,
    badge,
    may_view,
    shown,
    verdict,
)
from console.capacity.page_data import host_page, utilisation_bar
from console.failover.drain import check_drain_action
from console.failover.loss import loss_page
from console.hosts.agent_part import agent_part
from console.hosts.columns import (
    CLOUD_EMPTY,
    CLOUD_NOTE,
    AggregateFilter,
    ReadyFilter,
    TraitFilter,
    ZoneFilter,
    host_state,
    host_state_badge,
)
from console.hosts.orders import (
    ReasonForm,
    end_maintenance,
    end_termination,
    evict_hosts,
    new_tokens,
    start_maintenance,
    start_termination,
)
from console.links import find_link, list_url, text_link
from console.time_charts import host_chart
from core.text import (
    NOTHING,
    count_text,
    gib_number,
    gib_text,
    moment_text,
    percent_text,
    plural,
    time_text,
)
from failover.models import FailoverDecision
from hosts.agents.models import HostAgent
from hosts.models import Host, Instance
from journal.clock import database_now

HELD = ("committed", "failover", "in_flight")
WORDS_OF_PART = {"allocated": "VMs", "in_flight": "in flight"}


def used_amounts(room: HostCapacity) -> tuple[int, int]:
    """Return memory in bytes and vCPUs that VMs take or reservations hold."""
    memory_bytes = room.allocated_memory_bytes
    vcpus = room.allocated_vcpus
    for kind in HELD:
        memory_bytes += getattr(room, f"{kind}_memory_bytes")
        vcpus += getattr(room, f"{kind}_vcpus")
    return memory_bytes, vcpus


def conditions_text(row: Host) -> str:
    """Show the conditions that a host reports, since when, and why they stand so."""
    lines = []
    prefetch_related_objects([row], "kept_conditions")  # once, however often it is shown
    for one in row.kept_conditions.all():
        told = ": ".join(word for word in (one.reason, one.message) if word)
        since = f" since {moment_text(one.last_transition_at)}" if one.last_transition_at else ""
        lines.append(f"{one.type} is {one.status}{since}" + (f" ({told})" if told else ""))
    return "; ".join(lines) or NOTHING


def eviction_text(row: Host) -> str:
    """Show whether a host is to become empty, and what is left on it."""
    prefetch_related_objects([row], "evictions")
    last = next(iter(row.evictions.all()), None)
    if last is None:
        return NOTHING
    left = f"{plural(last.outstanding_vms, 'VM')}, {gib_text(last.outstanding_memory_bytes)}"
    if last.closed_at is not None:
        return f"ended {moment_text(last.closed_at)}: {last.get_end_display()}"
    first = ", ".join(f"{one['name'] or one['uuid']} {one['step']}" for one in last.outstanding[:3])
    told = f"ordered by {last.opened_by} {moment_text(last.opened_at)}: {left} left"
    if last.trouble:
        told += f"; {last.trouble}"
    return f"{told}; first: {first}" if first else told


def free_amounts(room: HostCapacity) -> tuple[int, int]:
    """Return memory in bytes and vCPUs that are left; negative where over-subscribed."""
    memory_bytes, vcpus = used_amounts(room)
    return room.effective_memory_bytes - memory_bytes, room.effective_vcpus - vcpus


def _taken(suffix: str, room: str) -> Any:  # Any: an F or what sums of them are
    """Return what is taken of a resource, for the database.

    Args:
        room: Lookup that leads from the list's rows to the capacity row.
    """
    return sum((F(f"{room}{kind}_{suffix}") for kind in HELD), F(f"{room}allocated_{suffix}"))


def _left(suffix: str, room: str = "") -> Any:  # Any: as above
    """Return what is left of a resource, likewise."""
    return F(f"{room}effective_{suffix}") - _taken(suffix, room)


def _used_share(room: str = "") -> CombinedExpression:
    """Return the share of a host's memory that is taken, in thousandths, likewise."""
    whole = Greatest(F(f"{room}effective_memory_bytes"), 1)
    return CombinedExpression(_taken("memory_bytes", room) * 1000, "/", whole)


def _room_of(row: Host | HostCapacity) -> HostCapacity | None:
    return row if isinstance(row, HostCapacity) else getattr(row, "room", None)


def _memory(part: str, room: str = "") -> Column:
    """Return the column of the memory of a part of the room, in GiB."""
    name = f"{part}_memory_bytes"
    return shown(
        f"{WORDS_OF_PART.get(part, part)}, GiB",
        lambda row: gib_number(getattr(_room_of(row), name, None)),
        f"{room}{name}",
    )


def _vcpus(part: str, room: str = "") -> Column:
    """Return the column of the vCPUs of a part of the room."""
    name = f"{part}_vcpus"
    return shown(
        f"{WORDS_OF_PART.get(part, part)}, vCPUs",
        lambda row: count_text(getattr(_room_of(row), name, None)),
        f"{room}{name}",
    )


def _free_memory(room: str = "") -> Column:
    return shown("free, GiB", partial(_free_text, 0, gib_number), _left("memory_bytes", room))


def _free_vcpus(room: str = "") -> Column:
    return shown("free, vCPUs", partial(_free_text, 1, count_text), _left("vcpus", room))


def _free_text(
    place: int, text: Callable[[int], str], row: Host | HostCapacity
) -> SafeString | str:
    """Show what is left, marked where that is less than nothing."""
    room = _room_of(row)
    if room is None:
        return NOTHING
    free = free_amounts(room)[place]
    return badge("bad", text(free), "over-subscribed") if free < 0 else text(free)


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


def host_verdict(row: Host, room: HostCapacity | None, vms: int) -> PageData:
    """Return what a host's page begins with: its state, and what is left on it."""
    tone, words = host_state(row)
    left = "it has no room"
    if room is not None:
        free = f"{gib_number(free_amounts(room)[0])} of {gib_text(room.effective_memory_bytes)}"
        left = f"{free} and {count_text(free_amounts(room)[1], 'vCPUs')} are free"
    since = f"Down since {time_text(row.down_since, database_now())}. " if row.down_since else ""
    why = f"{row.disabled_reason}. " if row.disabled_reason else ""
    return verdict(tone, f"{row.name} is {words}: {left}", f"{since}{why}{plural(vms, 'VM')} here.")


@admin.register(Host)
class HostAdmin(SystemOwnedAdmin[Host], CheckedActions[Host]):
    """Hypervisors with what is used, held and free on them."""

    owner_note = CLOUD_NOTE
    empty_note = CLOUD_EMPTY
    change_form_before_template = "admin/host_page.html"
    list_display = (
        "name",
        "zone",
        "state_column",
        "life",
        "utilisation",
        "vms",
        "effective_gib",
        "allocated_gib",
        "committed_gib",
        "failover_gib",
        "free_gib",
        "effective_vcpus_count",
        "free_vcpus_count",
    )
    list_filter = (
        ZoneFilter,
        ReadyFilter,
        "state",
        "status",
        "hypervisor_type",
        AggregateFilter,
        TraitFilter,
    )
    search_fields = ("name", "service_host", "=openstack_id")
    search_help_text = "Name, service host, or whole OpenStack id"
    list_select_related = ("room",)
    actions = (  # type: ignore[assignment]  # those of this page
        check_drain_action,
        start_maintenance,
        evict_hosts,
        end_maintenance,
        start_termination,
        end_termination,
        new_tokens,
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
        "eviction_column",
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
        "ruled_overcommit",
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

    def has_token_permission(self, request: HttpRequest) -> bool:
        """Whether the user may let agents enrol."""
        return bool(request.user.has_perm("hosts.add_enrolmenttoken"))

    def get_queryset(self, request: HttpRequest) -> QuerySet[Host]:
        """Read hosts with their number of VMs, and what is taken of their rooms for files."""
        on_host = Instance.objects.filter(host=OuterRef("pk")).order_by().values("host")
        counted = on_host.annotate(count=Count("pk")).values("count")
        annotated: QuerySet[Host] = with_holdings(super().get_queryset(request)).annotate(
            vm_count=Coalesce(Subquery(counted), 0),
            **{
                f"{part}_{suffix}": F(f"room__{part}_{suffix}")
                for suffix in ("memory_bytes", "vcpus")
                for part in ("allocated", *HELD)
            },
            free_memory_bytes=_left("memory_bytes", "room__"),
            free_vcpus=_left("vcpus", "room__"),
        )
        return annotated

    def page_parts(self, request: HttpRequest, row: Host) -> dict[str, Any]:
        """Show the page with room, slots and VMs."""
        room = getattr(row, "room", None)
        sees = may_view(request, HostHistory)
        return {
            "page": host_page(row),
            "verdict": host_verdict(row, room, getattr(row, "vm_count", 0)),
            "drain_url": reverse("headroom_host_drain", args=[row.pk]),
            "agent": agent_part(row.name) if may_view(request, HostAgent) else None,
            "loss": loss_page(row) if may_view(request, FailoverDecision) else None,
            "chart": host_chart(row.name, room, now=database_now()) if sees else None,
        }

    state_column = shown("ready", host_state_badge, "state")
    life = shown("life", listed_state)
    conditions_column = shown("conditions", conditions_text)
    eviction_column = shown("to become empty", eviction_text)

    @admin.display(description="VMs", ordering="vm_count")
    def vms(self, row: Host) -> SafeString:
        """Link to the VMs on the host."""
        count = getattr(row, "vm_count", 0)
        return text_link(list_url("hosts.instance", host__id__exact=row.pk), count_text(count))

    effective_gib = shown(
        "effective, GiB",
        lambda row: gib_number(row.effective_memory_bytes),
        "effective_memory_bytes",
    )
    allocated_gib = _memory("allocated", "room__")
    committed_gib = _memory("committed", "room__")
    failover_gib = _memory("failover", "room__")
    free_gib = _free_memory("room__")
    effective_vcpus_count = shown(
        "effective, vCPUs", lambda row: count_text(row.effective_vcpus), "effective_vcpus"
    )
    free_vcpus_count = _free_vcpus("room__")

    utilisation = shown(
        "memory used",
        lambda row: utilisation_cell(getattr(row, "room", None)),
        _used_share("room__"),
    )

    @admin.display(description="aggregates")
    def aggregates(self, row: Host) -> SafeString | str:
        """Link to the aggregates."""
        links = [find_link("aggregate", uuid) for uuid in row.aggregate_uuids]
        return SafeString(", ".join(links)) if links else NOTHING


@admin.register(HostCapacity)
class HostCapacityAdmin(SystemOwnedAdmin[HostCapacity]):
    """The truth about each host's room."""

    owner_note = (
        "Kept by the transactions that change reservations; a block is taken only where it fits. "
        "Changing a number here would break every promise made from it."
    )
    empty_note = f"Room comes with hosts. {CLOUD_EMPTY}"
    list_display = (
        "host_name",
        "zone",
        "utilisation",
        "effective_gib",
        "allocated_gib",
        "committed_gib",
        "failover_gib",
        "in_flight_gib",
        "free_gib",
        "effective_vcpus_count",
        "allocated_vcpus_count",
        "held_vcpus_count",
        "free_vcpus",
    )
    list_filter = (ZoneFilter,)
    search_fields = ("host__name",)
    search_help_text = "Host name"
    list_select_related = ("host",)
    ordering = ("host__name",)

    host_name = shown("host", lambda row: row.host.name, "host__name")
    utilisation = shown("memory used", utilisation_cell, _used_share())
    effective_gib = _memory("effective")
    allocated_gib = _memory("allocated")
    committed_gib = _memory("committed")
    failover_gib = _memory("failover")
    in_flight_gib = _memory("in_flight")
    free_gib = _free_memory()
    effective_vcpus_count = _vcpus("effective")
    allocated_vcpus_count = _vcpus("allocated")
    held_vcpus_count = shown(
        "held, vCPUs",
        lambda row: count_text(used_amounts(row)[1] - row.allocated_vcpus),
        sum((F(f"{kind}_vcpus") for kind in HELD[1:]), F(f"{HELD[0]}_vcpus")),
    )
    free_vcpus = _free_vcpus()
