"""Admin of coverage per zone and of shadow plans."""

from __future__ import annotations

from typing import Any

from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.http import Http404, HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString

from console.base import (
    SystemOwnedAdmin,
    badge,
    column,
    list_url,
    row_url,
    shown,
    text_link,
)
from console.failover.page_data import coverage_bar, coverage_page, objective_text
from console.failover.trouble_page import trouble_page
from console.hosts.filters import ZoneFilter
from core.text import count_text, memory_short, percent_text
from failover.drill_models import CoverageAccount, ShadowPlan
from failover.selectors.troubles import zone_troubles
from failover.services.nudges import start_rebalancing
from journal.clock import database_now
from journal.errors import HeadroomError

TROUBLES = "admin:failover_coverageaccount_troubles"


@admin.register(CoverageAccount)
class CoverageAccountAdmin(SystemOwnedAdmin[CoverageAccount]):
    """Coverage of each zone, and what it costs."""

    owner_note = "Accounted every minute from VMs and slots; the bound is computed every night."
    change_form_before_template = "admin/coverage_page.html"
    list_display = (
        "zone",
        "coverage",
        "uncovered",
        "objective",
        "reserved",
        "share",
        "bound",
        "accounted",
    )
    list_filter = (ZoneFilter,)
    search_fields = ("zone",)
    page_columns = ("zone", "owed_vm_seconds", "uncovered_vm_seconds", "accounted_at", "bounded_at")

    def page_parts(self, request: HttpRequest, row: CoverageAccount) -> dict[str, Any]:
        """Show coverage by class, why VMs lack slots, and hosts by blast radius."""
        return {
            "page": coverage_page(row),
            "troubles_url": reverse(TROUBLES, args=[row.pk]),
        }

    def get_urls(self) -> list[URLPattern]:
        """Add the page of broken rules and stale memberships."""
        troubles = path(
            "<int:key>/troubles/",
            self.admin_site.admin_view(self.troubles_view),
            name="failover_coverageaccount_troubles",
        )
        return [troubles, *super().get_urls()]

    def troubles_view(self, request: HttpRequest, key: int) -> HttpResponse:
        """Show what breaks the rules or is out of date, why, and what the loop will do.

        Raises:
            PermissionDenied: the user may not see coverage.
            Http404: there is no such zone.
        """
        row = self.get_object(request, str(key))
        if row is None:
            raise Http404
        if not self.has_view_permission(request, row):
            raise PermissionDenied
        context = {
            **self.admin_site.each_context(request),
            "title": f"Broken rules and stale users in {row.zone}",
            "opts": self.opts,
            "page": trouble_page(zone_troubles(row.zone, now=database_now())),
            "back_url": row_url(row),
        }
        return TemplateResponse(request, "admin/trouble_page.html", context)

    @admin.display(description="coverage", ordering="uncovered_vms")
    def coverage(self, row: CoverageAccount) -> SafeString:
        """Draw how many VMs have all their slots."""
        bar = coverage_bar(row.owed_vms - row.uncovered_vms, 0, row.uncovered_vms, row.zone)
        share = percent_text(row.owed_vms - row.uncovered_vms, row.owed_vms)
        return format_html('<span class="hr-bar-cell">{} {}</span>', bar, share)

    @admin.display(description="uncovered VMs", ordering="uncovered_vms")
    def uncovered(self, row: CoverageAccount) -> SafeString:
        """Link to the VMs that lack slots."""
        url = list_url("failover.failoverdecision", zone__exact=row.zone)
        return text_link(url, f"{row.uncovered_vms:,} of {row.owed_vms:,}")

    objective = shown("covered time", objective_text)
    reserved = shown(
        "reserved", lambda row: memory_short(row.reserved_memory_bytes), "reserved_memory_bytes"
    )
    share = shown(
        "of VM memory", lambda row: percent_text(row.reserved_memory_bytes, row.vm_memory_bytes)
    )
    bound = shown(
        "lower bound",
        lambda row: memory_short(row.lower_bound_bytes) if row.bounded_at else "not computed yet",
        "lower_bound_bytes",
    )
    accounted = column("accounted_at", "accounted")


@admin.action(description="Plan these zones from scratch and carry it out", permissions=["start"])
def start_now(
    _: admin.ModelAdmin[ShadowPlan], request: HttpRequest, rows: QuerySet[ShadowPlan]
) -> None:
    """Tell the worker to rebalance zones now; their newest plans show the progress."""
    for zone in sorted(set(rows.values_list("zone", flat=True))):
        try:
            start_rebalancing(zone, None)
        except HeadroomError as problem:
            messages.error(request, f"{zone}: {problem.message}")
            continue
        messages.success(
            request, f"{zone}: the worker was told; the newest plan shows the progress"
        )


@admin.register(ShadowPlan)
class ShadowPlanAdmin(SystemOwnedAdmin[ShadowPlan]):
    """Plans made from scratch, and what they would save."""

    owner_note = (
        "Computed every night; carried out in small steps when it saves enough. "
        "manage.py rebalance_failover ZONE shows what would be done before it is."
    )
    actions = (start_now,)  # type: ignore[assignment]  # the one action of this page
    list_display = ("zone", "computed", "state_column", "now", "then", "saving", "steps_done")
    list_filter = (ZoneFilter, "state")
    page_columns = (
        "zone",
        "state_column",
        "computed_at",
        "reserved_memory_bytes",
        "shadow_memory_bytes",
        "saving",
        "lower_bound_bytes",
        "vm_memory_bytes",
        "slot_count",
        "steps_done",
        "request_id",
    )

    def has_start_permission(self, request: HttpRequest) -> bool:
        """Whether the user may have zones rebalanced."""
        return bool(request.user.has_perm("failover.change_shadowplan"))

    computed = column("computed_at", "computed")

    @admin.display(description="state", ordering="state")
    def state_column(self, row: ShadowPlan) -> SafeString:
        """Say what became of it."""
        tone = {"proposed": "warn", "running": "warn", "done": "ok"}.get(row.state, "idle")
        return badge(tone, row.get_state_display())

    now = shown(
        "reserved now", lambda row: memory_short(row.reserved_memory_bytes), "reserved_memory_bytes"
    )
    then = shown(
        "from scratch", lambda row: memory_short(row.shadow_memory_bytes), "shadow_memory_bytes"
    )

    @admin.display(description="saving")
    def saving(self, row: ShadowPlan) -> str:
        """Show the difference as a share."""
        saved = row.reserved_memory_bytes - row.shadow_memory_bytes
        return percent_text(max(0, saved), row.reserved_memory_bytes)

    slot_count = shown("slots of the plan", lambda row: count_text(len(row.slots)))
