"""Admin of reservations: slots of commitments, failover and in-flight holds."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.http import HttpRequest, HttpResponse
from django.utils.safestring import SafeString

from capacity.models import Reservation
from console.base import (
    SystemOwnedAdmin,
    find_link,
    register_findable,
    row_link,
)
from console.capacity.page_data import reservation_badge, slot_lines
from console.hosts.filters import ZoneFilter
from core.text import NOTHING, count_text, memory_text

register_findable("reservation", Reservation, "uuid")


@admin.register(Reservation)
class ReservationAdmin(SystemOwnedAdmin[Reservation]):
    """Capacity held on hosts."""

    owner_note = (
        "Placed and released by the system, with the host's room, in one transaction. Change the "
        "commitment in Limes to change its slots."
    )
    change_form_before_template = "admin/reservation_page.html"
    list_display = (
        "title",
        "kind",
        "owner",
        "host",
        "zone",
        "flavor_group_name",
        "resource_name",
        "memory",
        "cores",
        "blocked",
        "ready",
    )
    list_filter = (ZoneFilter, "kind", "is_ready", "ready_reason", "flavor_group_name")
    search_fields = (
        "=uuid",
        "=commitment__commitment_uuid",
        "=project_id",
        "=target_host__name",
        "=confirmed_host__name",
    )
    search_help_text = "Whole id of the reservation, commitment or project, or whole host name"
    list_select_related = ("commitment", "target_host", "confirmed_host")
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

    def change_view(
        self,
        request: HttpRequest,
        object_id: str,
        form_url: str = "",
        extra_context: dict[str, Any] | None = None,
    ) -> HttpResponse:
        """Show the page with the VMs inside and why it is where it is."""
        row = self.get_object(request, object_id)
        slots = slot_lines([row]) if row is not None else ()
        context = {**(extra_context or {}), "slots": slots}
        return super().change_view(request, object_id, form_url, context)

    @admin.display(description="reservation", ordering="id")
    def title(self, row: Reservation) -> str:
        """Name the reservation."""
        return str(row)

    @admin.display(description="held for", ordering="commitment_id")
    def owner(self, row: Reservation) -> SafeString | str:
        """Link to the commitment, or the project."""
        if row.commitment is not None:
            return row_link(row.commitment)
        return find_link("project", row.project_id)

    @admin.display(description="project", ordering="project_id")
    def project(self, row: Reservation) -> SafeString | str:
        """Link to the project."""
        return find_link("project", row.project_id)

    @admin.display(description="host", ordering="confirmed_host__name")
    def host(self, row: Reservation) -> SafeString | str:
        """Link to the host that carries it."""
        return row_link(row.confirmed_host or row.target_host)

    @admin.display(description="memory", ordering="memory_bytes")
    def memory(self, row: Reservation) -> str:
        """Show the memory."""
        return memory_text(row.memory_bytes)

    @admin.display(description="vCPUs", ordering="vcpus")
    def cores(self, row: Reservation) -> str:
        """Show the vCPUs."""
        return count_text(row.vcpus)

    @admin.display(description="still blocked", ordering="blocked_memory_bytes")
    def blocked(self, row: Reservation) -> str:
        """Show what it still takes from its host."""
        if row.blocked_memory_bytes == 0 and row.blocked_vcpus == 0:
            return NOTHING
        return f"{memory_text(row.blocked_memory_bytes)}, {count_text(row.blocked_vcpus)} vCPUs"

    @admin.display(description="ready", ordering="is_ready")
    def ready(self, row: Reservation) -> SafeString:
        """Say whether it holds its capacity."""
        return reservation_badge(row)
