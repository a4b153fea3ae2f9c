"""Admin of failover reservations: who may use which slot (spec failover, 14.4)."""

from __future__ import annotations

from django.contrib import admin
from django.db.models import Count, F, OuterRef, QuerySet, Subquery
from django.db.models.functions import Coalesce
from django.http import HttpRequest
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from capacity.models import ReservationAllocation
from console.base import SystemOwnedAdmin, badge, column, shown
from console.failover.loss import hosts_text, vm_names
from console.links import find_link, row_link
from core.text import NOTHING, count_text, gib_number
from failover.choices import SlotState
from failover.models import FailoverReservation
from hosts.models import Instance

STATE_TONES = {
    SlotState.ACTIVE: "ok",
    SlotState.CONSUMING: "warn",
    SlotState.INVALID: "bad",
    SlotState.RETIRED: "idle",
}


@admin.register(FailoverReservation)
class FailoverReservationAdmin(SystemOwnedAdmin[FailoverReservation]):
    """Slots with their users; a VM's slots are found by its uuid."""

    owner_note = (
        "Written by the loop, by validation and by evacuations; the database keeps the rules."
    )
    empty_note = (
        "No failover slot is held: the loop makes them for VMs that a policy names "
        "(docs/failover.md)."
    )
    list_display = (
        "name",
        "zone",
        "host",
        "memory_gib",
        "vcpus",
        "users_count",
        "state_column",
        "agreed",
        "changed",
    )
    list_filter = ("state", "reservation__zone")
    search_fields = (
        "name__whole",
        "reservation__target_host__name__whole",
        "reservation__allocations__vm_uuid__whole",
        "reservation__allocations__vm_host__name__whole",
    )
    is_searched_apart = True
    search_help_text = "Whole name of the slot, of its host or of a user's host, or uuid of a VM"
    list_select_related = ("reservation__target_host",)
    ordering = ("name",)
    page_columns = (
        "name",
        "zone",
        "host",
        "memory_gib",
        "vcpus",
        "state_column",
        "user_list",
        "agreed",
        "changed",
        "next_validation_at",
        "decision",
        "version",
    )

    def get_queryset(self, request: HttpRequest) -> QuerySet[FailoverReservation]:
        """Read slots with what they hold and the number of their users, counted a row shown."""
        users = ReservationAllocation.objects.filter(reservation=OuterRef("reservation"))
        counted = users.order_by().values("reservation").annotate(count=Count("pk"))
        chosen: QuerySet[FailoverReservation] = (
            super()
            .get_queryset(request)
            .annotate(
                zone=F("reservation__zone"),
                host_name=F("reservation__target_host__name"),
                memory_bytes=F("reservation__memory_bytes"),
                vcpus=F("reservation__vcpus"),
                user_count=Coalesce(Subquery(counted.values("count")), 0),
            )
        )
        return chosen

    zone = shown("zone", lambda row: row.reservation.zone, "reservation__zone")
    host = shown(
        "host", lambda row: row_link(row.reservation.target_host), "reservation__target_host__name"
    )

    memory_gib = shown(
        "memory, GiB",
        lambda row: gib_number(row.reservation.memory_bytes),
        "reservation__memory_bytes",
    )
    vcpus = shown("vCPUs", lambda row: count_text(row.reservation.vcpus), "reservation__vcpus")
    users_count = shown("VMs", lambda row: count_text(getattr(row, "user_count", 0)), "user_count")

    @admin.display(description="users")
    def user_list(self, row: FailoverReservation) -> SafeString | str:
        """Link to the VMs that share it, each with its host."""
        users = list(row.reservation.allocations.select_related("vm_host").order_by("pk"))
        names = dict(
            Instance.objects.filter(openstack_id__in=[user.vm_uuid for user in users]).values_list(
                "openstack_id", "name"
            )
        )
        lines = (
            (
                find_link("vm", user.vm_uuid, names.get(user.vm_uuid) or user.vm_uuid),
                row_link(user.vm_host),
                "agreed" if user.validated_at else "not asked yet",
            )
            for user in users
        )
        return format_html_join("", "{} @ {} ({})<br>", lines) or NOTHING

    @admin.display(description="state", ordering="state")
    def state_column(self, row: FailoverReservation) -> SafeString:
        """Say whether it covers its users."""
        is_ready = row.reservation.is_ready is True
        tone = STATE_TONES[SlotState(row.state)] if is_ready else "bad"
        words = row.get_state_display() if is_ready else "not ready"
        return badge(tone, words, row.reservation.ready_message)

    agreed = column("acknowledged_at", "acknowledged")
    changed = column("last_changed_at", "changed")

    @admin.display(description="why this host")
    def decision(self, row: FailoverReservation) -> SafeString | str:
        """Show for which VM it was made, and how many hosts were left by what."""
        facts = dict(row.reservation.decision or {})
        told: list[SafeString | str] = []
        if vm_uuid := facts.pop("for_vm", ""):
            name = vm_names([vm_uuid]).get(vm_uuid, "")
            told.append(format_html("made for {}", find_link("vm", vm_uuid, name)))
        if hosts := facts.pop("hosts", None):
            told.append(f"hosts: {hosts_text(hosts)}")
        told += [f"{name.replace('_', ' ')}: {fact}" for name, fact in sorted(facts.items())]
        return format_html_join("; ", "{}", ((line,) for line in told)) or NOTHING
