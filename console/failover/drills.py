"""Admin of failure drills."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.safestring import SafeString

from console.base import SystemOwnedAdmin, badge, column
from console.failover.page_data import drill_page
from console.hosts.filters import ZoneFilter
from failover.drill_models import FailureDrill


@admin.register(FailureDrill)
class FailureDrillAdmin(SystemOwnedAdmin[FailureDrill]):
    """What the loss of hosts and racks would do, newest first."""

    owner_note = "Drilled every night from the rows; POST /api/v1/failover/simulations asks now."
    change_form_before_template = "admin/drill_page.html"
    list_display = ("zone", "scope", "result", "cases", "simulated", "vms", "when")
    list_filter = (ZoneFilter, "scope")
    search_fields = ("zone", "=request_id")
    ordering = ("-id",)
    page_columns = (
        "zone",
        "scope",
        "cases",
        "simulated",
        "vms",
        "unprotected_vms",
        "started_at",
        "finished_at",
        "request_id",
    )

    def get_queryset(self, request: HttpRequest) -> QuerySet[FailureDrill]:
        """Read drills without their details, which only pages need."""
        return super().get_queryset(request).defer("worst", "hosts")

    def page_parts(self, request: HttpRequest, row: FailureDrill) -> dict[str, Any]:
        """Show the result as a picture."""
        return {"page": drill_page(row)}

    @admin.display(description="result", ordering="unprotected_vms")
    def result(self, row: FailureDrill) -> SafeString:
        """Say whether every VM would have a slot."""
        if not row.unprotected_vms:
            return badge("ok", "all protected")
        return badge("bad", f"{row.unprotected_vms:,} VMs unprotected")

    when = column("started_at", "drilled")
