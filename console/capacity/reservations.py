"""Admin of reservations: slots of commitments, failover and in-flight holds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.contrib import admin
from django.http import HttpRequest
from django.utils.safestring import SafeString

from capacity.models import Reservation
from console.base import SystemOwnedAdmin, link, shown
from console.capacity.page_data import reservation_badge, slot_lines
from console.commitments.presentation import commitment_name
from console.hosts.columns import FoundByName, ZoneFilter
from console.links import find_link, list_url, register_findable, row_link
from console.names import names_of, reservation_name
from console.pages import set_crumbs
from core.text import NOTHING, count_text, gib_number
from hosts.models import Project

register_findable("reservation", Reservation, "uuid")


@admin.register(Reservation)
class ReservationAdmin(FoundByName[Reservation], SystemOwnedAdmin[Reservation]):
    """Capacity held on hosts."""

    owner_note = (
        "Placed and released by the system, with the host's room, in one transaction. Change the "
        "commitment in Limes to change its slots."
    )
    empty_note = (
        "Nothing is held: slots come with commitments that Limes asks for (docs/limes.md), and "
        "with VMs that a failover policy names (docs/failover.md)."
    )
    change_form_before_template = "admin/reservation_page.html"
    list_display = (
        "title",
        "kind",
        "owner",
        "host",
        "zone",
        "group",
        "flavor",
        "memory_gib",
        "vcpus_count",
        "blocked_gib",
        "blocked_vcpus_count",
        "ready",
    )
    list_filter = (ZoneFilter, "kind", "is_ready", "ready_reason", "flavor_group_name")
    search_fields = (
        "uuid__whole",
        "commitment__commitment_uuid__whole",
        "project_id__whole",
        "target_host__name__whole",
        "confirmed_host__name__whole",
    )
    is_searched_apart = True
    search_help_text = (
        "Whole id of the reservation or commitment, id or name of the project, or host name"
    )
    named_columns = {"project_id": Project}
    names_in = ("project_id",)
    list_select_related = ("commitment", "target_host", "confirmed_host", "failover")
    ordering = ("-id",)
    page_columns = (
        "uuid",
        "kind",
        "owner",
        "slot_index",
        "zone",
        "flavor_group_name",
        "resource_name",
        "project",
        "memory_bytes",
        "vcpus",
        "blocked_memory_bytes",
        "blocked_vcpus",
        "target_host",
        "confirmed_host",
        "ready",
        "ready_message",
        "ready_changed_at",
        "start_time",
        "end_time",
        "creator",
        "creator_request_id",
        "generation",
        "parent_generation",
        "observed_parent_generation",
        "decision",
        "created_at",
        "updated_at",
    )

    def page_parts(self, request: HttpRequest, row: Reservation) -> dict[str, Any]:
        """Show the page with the VMs inside and why it is where it is."""
        name = reservation_name(row)
        set_crumbs(request, (("Reservations", list_url(self.opts.label_lower)), (name, "")))
        return {"slots": slot_lines([row]), "subtitle": name}

    title = shown("reservation", reservation_name, "id")

    @admin.display(description="held for", ordering="commitment_id")
    def owner(self, row: Reservation) -> SafeString | str:
        """Link to the commitment, or the project."""
        if row.commitment is not None:
            name = commitment_name(row.commitment)
            return find_link("commitment", row.commitment.commitment_uuid, name)
        return names_of(row).link("project", row.project_id)

    project = link("project", "project_id", "project")
    host = shown(
        "host", lambda row: row_link(row.confirmed_host or row.target_host), "confirmed_host__name"
    )
    group = shown("group", lambda row: row.flavor_group_name or NOTHING, "flavor_group_name")
    flavor = shown("flavor", lambda row: row.resource_name or NOTHING, "resource_name")
    memory_gib = shown("memory, GiB", lambda row: gib_number(row.memory_bytes), "memory_bytes")
    vcpus_count = shown("vCPUs", lambda row: count_text(row.vcpus), "vcpus")
    blocked_gib = shown(
        "blocked, GiB",
        lambda row: _some(row.blocked_memory_bytes, gib_number),
        "blocked_memory_bytes",
    )
    blocked_vcpus_count = shown(
        "blocked, vCPUs",
        lambda row: _some(row.blocked_vcpus, count_text),
        "blocked_vcpus",
    )
    ready = shown("ready", reservation_badge, "is_ready")


def _some(amount: int, text: Callable[[int], str]) -> str:
    return text(amount) if amount else NOTHING
