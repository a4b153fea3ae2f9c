"""Admin of usage: which commitment covered which VM when, and from where runs follow changes."""

from __future__ import annotations

from django.conf import settings
from django.contrib import admin
from django.db.models import Q
from django.utils.html import format_html
from django.utils.safestring import SafeString

from commitments.models import AssignmentPeriod, UsageCheck
from console.base import AnswerFilter, SystemOwnedAdmin, badge, column, link, shown, time_tag
from core.text import NOTHING, duration_text


class OpenFilter(AnswerFilter):
    """Periods by whether they still last."""

    title = "lasting"
    parameter_name = "lasting"
    answers = {
        "yes": ("still covered", lambda: Q(valid_to__isnull=True)),
        "no": ("over", lambda: Q(valid_to__isnull=False)),
    }


@admin.register(AssignmentPeriod)
class AssignmentPeriodAdmin(SystemOwnedAdmin[AssignmentPeriod]):
    """From when to when commitments covered VMs."""

    owner_note = (
        "Written by the database with every assignment, and never changed after its end. Ids stay "
        "when VMs and commitments go. Periods are forgotten "
        "HEADROOM_USAGE__HISTORY_RETENTION_DAYS after their end."
    )
    list_display = (
        "vm",
        "commitment",
        column("resource_type", "resource"),
        "project",
        column("valid_from", "from"),
        "until",
        "lasted",
    )
    list_filter = (OpenFilter, "resource_type")
    search_fields = ("=vm_uuid", "=commitment_uuid", "=project_id")
    search_help_text = "Whole id of a VM, commitment or project"
    page_columns = (
        "vm",
        "commitment",
        "resource_type",
        "project",
        "valid_from",
        "valid_to",
        "lasted",
    )

    vm = link("vm", "vm_uuid", "VM")
    commitment = link("commitment", "commitment_uuid", "covered by")
    project = link("project", "project_id", "project")
    until = shown(
        "until",
        lambda row: badge("ok", "still") if row.valid_to is None else time_tag(row.valid_to),
        "valid_to",
    )
    lasted = shown(
        "lasted",
        lambda row: (
            NOTHING if row.valid_to is None else duration_text(row.valid_to - row.valid_from)
        ),
    )


@admin.register(UsageCheck)
class UsageCheckAdmin(SystemOwnedAdmin[UsageCheck]):
    """From which state of the database the next usage run follows changes."""

    owner_note = (
        "One row, written after every whole usage run. Runs that follow changes come every "
        "HEADROOM_USAGE__CHANGES_INTERVAL_SECONDS, runs over all projects every "
        "HEADROOM_USAGE__COOLDOWN_SECONDS; a run that does not come is seen here first."
    )
    list_display = (
        column("checked_at", "last run"),
        column("fully_checked_at", "last run over all projects"),
        "intervals",
    )
    page_columns = ("checked_at", "fully_checked_at", "intervals", "snapshot", "group_fingerprint")

    @admin.display(description="runs come")
    def intervals(self, row: UsageCheck) -> SafeString:
        """Show how often runs should come."""
        chosen = settings.HEADROOM.usage
        return format_html(
            "every {} s, over all projects every {} s",
            chosen.changes_interval_seconds,
            chosen.cooldown_seconds,
        )
