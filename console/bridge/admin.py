"""Admin of the mirror: each object, whether it is as its row, and what it should look like."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import yaml
from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.db import models
from django.db.models import Q
from django.http import Http404, HttpRequest, HttpResponse
from django.urls import URLPattern, path, reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString

from bridge.clusters import naming
from bridge.domain.edits import path_text
from bridge.domain.kinds import ObjectKind
from bridge.models import MirrorState, OwnedFieldConflict
from bridge.selectors import render_rows
from capacity.models import GroupCapacity, ProjectQuota, Reservation
from commitments.models import Commitment
from console.base import AnswerFilter, SystemOwnedAdmin, badge, column
from console.links import row_link, text_link
from hosts.models import Host

#: The rows that objects are made of.
MODELS: Final[Mapping[str, type[models.Model]]] = {
    ObjectKind.COMMITTED_RESOURCE: Commitment,
    ObjectKind.RESERVATION: Reservation,
    ObjectKind.FLAVOR_GROUP_CAPACITY: GroupCapacity,
    ObjectKind.PROJECT_QUOTA: ProjectQuota,
    ObjectKind.HOST: Host,
}
MOST_ERROR_CHARACTERS: Final = 120


class StateFilter(AnswerFilter):
    """What became of an object."""

    title = "state"
    parameter_name = "state"
    answers = {
        "mirrored": (
            "mirrored",
            lambda: Q(is_due=False, error="", drifted_at=None, adopted__isnull=True),
        ),
        "waits": ("waits", lambda: Q(is_due=True, error="", drifted_at=None, adopted__isnull=True)),
        "refused": ("not written", lambda: ~Q(error="")),
        "left": ("left as changed", lambda: Q(drifted_at__isnull=False, adopted__isnull=True)),
        "adopted": ("adopted", lambda: Q(adopted__isnull=False)),
        "edited": ("ever changed by others", lambda: Q(drifts__gt=0)),
    }


@admin.register(MirrorState)
class MirrorStateAdmin(SystemOwnedAdmin[MirrorState]):
    """Mirrored rows."""

    owner_note = (
        "Kept by the bridge. What others change in a cluster is written anew, left or adopted, as "
        "HEADROOM_BRIDGE__HAND_EDITS says; change the row instead."
    )
    empty_note = (
        "Nothing is mirrored into Kubernetes: set HEADROOM_BRIDGE__CLUSTERS and run "
        "./run serve bridge (docs/bridge.md)."
    )
    list_display = (
        column("name", "object"),
        "kind",
        "cluster",
        "state_and_error",
        column("reason", "ready"),
        column("written_at"),
        column("drifts", "edits by others"),
    )
    list_filter = (StateFilter, "kind", "cluster")
    search_fields = ("name",)
    search_help_text = "Part of the name of an object"
    page_columns = (
        "name",
        "kind",
        "cluster",
        "row",
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
        "yaml_link",
        "manifest",
    )

    def get_urls(self) -> list[URLPattern]:
        """Add the YAML of an object by itself."""
        own = path(
            "<int:pk>/object.yaml",
            self.admin_site.admin_view(self.yaml_view),
            name="bridge_mirrorstate_yaml",
        )
        return [own, *super().get_urls()]

    def yaml_view(self, request: HttpRequest, pk: int) -> HttpResponse:
        """Return what the bridge writes of an object, as kubectl takes it."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        state = self.get_object(request, str(pk))
        if state is None:
            raise Http404
        text, is_yaml = _manifest(state)
        if not is_yaml:
            raise Http404(text)
        return HttpResponse(text, content_type="application/yaml; charset=utf-8")

    @admin.display(description="row")
    def row(self, state: MirrorState) -> SafeString | str:
        """Link to what the object shows."""
        rows: models.QuerySet[models.Model] = models.QuerySet(MODELS[state.kind])
        return row_link(rows.filter(pk=state.source_id).first())

    @admin.display(description="file")
    def yaml_link(self, state: MirrorState) -> SafeString | str:
        """Link to the YAML by itself."""
        address = reverse("admin:bridge_mirrorstate_yaml", args=[state.pk])
        return text_link(address, "object.yaml")

    @admin.display(description="state")
    def state(self, row: MirrorState) -> SafeString:
        """Say how the object stands to its row."""
        if row.adopted is not None:
            return badge("warn", "adopted", "a part of it is left to others")
        if row.drifted_at is not None:
            return badge("warn", "left as changed", "somebody else changed or deleted it")
        if row.error:
            return badge("bad", "not written")
        if row.is_due:
            return badge("idle", "waits")
        return badge("ok", "mirrored")

    @admin.display(description="state")
    def state_and_error(self, row: MirrorState) -> SafeString:
        """Say how the object stands to its row, and why it could not be written."""
        return format_html(
            '{} <span class="hr-sub">{}</span>', self.state(row), _shortened(row.error)
        )

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
        text, is_yaml = _manifest(row)
        return format_html('<pre class="hr-json" tabindex="0">{}</pre>' if is_yaml else "{}", text)


def _manifest(state: MirrorState) -> tuple[str, bool]:
    """Return the YAML of an object, or why there is none, and which of the two it is."""
    found = render_rows(ObjectKind(state.kind), [state.source_id], naming()).get(state.source_id)
    if found is None or isinstance(found, str):
        return found or "the row is gone: the object is to be deleted", False
    status = found.whole_status(
        state.object_generation, state.observed_generation, state.transitions
    )
    whole = {**found.manifest(naming()), "status": status}
    return yaml.safe_dump(whole, sort_keys=False), True


def _shortened(error: str) -> str:
    return error if len(error) <= MOST_ERROR_CHARACTERS else f"{error[:MOST_ERROR_CHARACTERS]} ..."


@admin.register(OwnedFieldConflict)
class OwnedFieldConflictAdmin(SystemOwnedAdmin[OwnedFieldConflict]):
    """Fields of Hypervisor objects that are not as they should be."""

    owner_note = (
        "Kept by the watcher of Hypervisor objects (docs/hypervisors.md, Fields that Headroom "
        "writes); a row goes once its field is as it should be."
    )
    empty_note = (
        "No Hypervisor objects are written, or all fields are as they should be: rows come with "
        "HEADROOM_HYPERVISORS__SYNC (docs/hypervisors.md)."
    )
    list_display = (column("host_name", "host"), "field", "problem", column("since"))
    list_filter = ("field",)
    search_fields = ("host_name",)
    search_help_text = "Part of the name of a host"
    page_columns = ("host_name", "field", "problem", "since")
