"""Admin of looks at slots: what was found last, and whether the VM list is believed."""

from __future__ import annotations

from django.contrib import admin
from django.utils.safestring import SafeString

from commitments.models import SlotCheck
from console.base import SystemOwnedAdmin, badge, column
from console.commitments.compaction import free_hosts_action
from core.text import NOTHING


@admin.register(SlotCheck)
class SlotCheckAdmin(SystemOwnedAdmin[SlotCheck]):
    """The last look at the slots of each zone."""

    owner_note = (
        "Written by the task that looks at slots. When a VM list shrank on purpose, accept it with "
        "manage.py verify_slots --accept-vm-list --zone ZONE; when so many hosts are really lost, "
        "with --accept-host-list. Choose zones and ask which hosts could be freed to see which "
        "empty slots would move."
    )
    actions = (free_hosts_action,)  # type: ignore[assignment]  # the one action of this page
    list_display = (
        "zone",
        "belief",
        "listed_vms",
        "host_belief",
        column("checked_at", "last change"),
        column("fully_checked_at", "last full look"),
        "found",
    )
    list_filter = ("is_refused",)
    search_fields = ("zone",)
    page_columns = (
        "zone",
        "belief",
        "message",
        "listed_vms",
        "host_belief",
        "host_refusal",
        "checked_at",
        "fully_checked_at",
        "counts",
    )

    @admin.display(description="VM list", ordering="is_refused")
    def belief(self, row: SlotCheck) -> SafeString:
        """Show whether the VM list is believed."""
        if row.is_refused:
            return badge("bad", "not believed", row.message)
        return badge("ok", "believed")

    @admin.display(description="host list", ordering="host_refusal")
    def host_belief(self, row: SlotCheck) -> SafeString:
        """Show whether hosts that are down or gone count as lost."""
        if row.host_refusal:
            return badge("bad", "not believed", row.host_refusal)
        return badge("ok", "believed")

    @admin.display(description="found last")
    def found(self, row: SlotCheck) -> str:
        """Show the counts of the last run that found anything."""
        counts = [f"{name.replace('_', ' ')} {count}" for name, count in row.counts.items()]
        return ", ".join(counts) or NOTHING
