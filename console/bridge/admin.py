"""Admin of the mirror: each object, whether it is as its row, and what it should look like."""

from __future__ import annotations

import yaml
from django.contrib import admin
from django.utils.html import format_html
from django.utils.safestring import SafeString

from bridge.clusters import naming
from bridge.domain.edits import path_text
from bridge.domain.kinds import Kind
from bridge.models import MirrorState, OwnedFieldConflict
from bridge.selectors import render_rows
from console.base import SystemOwnedAdmin, badge, column


@admin.register(MirrorState)
class MirrorStateAdmin(SystemOwnedAdmin[MirrorState]):
    """Mirrored rows."""

    owner_note = (
        "Kept by the bridge. What others change in a cluster is written anew, left or adopted, as "
        "HEADROOM_BRIDGE__HAND_EDITS says; change the row instead."
    )
    list_display = (
        column("name", "object"),
        "kind",
        "cluster",
        "state",
        column("reason", "ready"),
        column("written_at"),
        "drifts",
    )
    list_filter = ("kind", "cluster", "is_due")
    search_fields = ("name",)
    search_help_text = "Part of the name of an object"
    page_columns = (
        "name",
        "kind",
        "cluster",
        "state",
        "error",
        "failures",
        "due_at",
        "written_at",
        "drifts",
        "drifted_at",
        "adopted_fields",
        "resource_version",
        "object_generation",
        "observed_generation",
        "manifest",
    )

    @admin.display(description="state")
    def state(self, row: MirrorState) -> SafeString:
        """Say how the object stands to its row."""
        if row.adopted is not None:
            return badge("warn", "adopted", "a part of it is left to others")
        if row.drifted_at is not None:
            return badge("warn", "left as changed", "somebody else changed or deleted it")
        if row.error:
            return badge("bad", "not written", row.error)
        if row.is_due:
            return badge("idle", "waits")
        return badge("ok", "mirrored")

    @admin.display(description="left to others")
    def adopted_fields(self, row: MirrorState) -> str:
        """Name the fields that the bridge leaves until the database says something else."""
        if row.adopted is None:
            return ""
        if "gone" in row.adopted:
            return "the object: it was deleted"
        return ", ".join(path_text(field["path"]) for field in row.adopted["fields"])

    @admin.display(description="YAML of the row")
    def manifest(self, row: MirrorState) -> SafeString:
        """Show what the bridge writes, from the row as it is now."""
        found = render_rows(Kind(row.kind), [row.source_id], naming()).get(row.source_id)
        if found is None or isinstance(found, str):
            return format_html("{}", found or "the row is gone: the object is to be deleted")
        status = found.whole_status(row.object_generation, row.observed_generation, row.transitions)
        whole = {**found.manifest(naming()), "status": status}
        return format_html(
            '<pre class="hr-json" tabindex="0">{}</pre>', yaml.safe_dump(whole, sort_keys=False)
        )


@admin.register(OwnedFieldConflict)
class OwnedFieldConflictAdmin(SystemOwnedAdmin[OwnedFieldConflict]):
    """Fields of Hypervisor objects that are not as they should be."""

    owner_note = (
        "Kept by the watcher of Hypervisor objects (docs/hypervisors.md, Fields that Headroom "
        "writes); a row goes once its field is as it should be."
    )
    list_display = (column("host_name", "host"), "field", "problem", column("since"))
    list_filter = ("field",)
    search_fields = ("host_name",)
    search_help_text = "Part of the name of a host"
    page_columns = ("host_name", "field", "problem", "since")
