"""Columns and words about hosts and projects that admin pages of several apps share."""

from __future__ import annotations

from typing import TypeVar

from django.db.models import Model, OuterRef, QuerySet, Subquery
from django.utils.safestring import SafeString

from console.base import badge
from hosts.domain.readiness import hindering_conditions
from hosts.models import Host, Project

CLOUD_NOTE = (
    "Mirrored from OpenStack by import and sync. Change it in OpenStack; the next run brings it "
    "here."
)

RowT = TypeVar("RowT", bound=Model)


def with_project_name(queryset: QuerySet[RowT]) -> QuerySet[RowT]:
    """Annotate ``project_name`` from the row's ``project_id``, in the same query."""
    names = Project.objects.filter(openstack_id=OuterRef("project_id")).values("name")[:1]
    annotated: QuerySet[RowT] = queryset.annotate(project_name=Subquery(names))
    return annotated


def enabled_badge(*, is_enabled: bool) -> SafeString:
    """Show whether a row is enabled."""
    return badge("ok", "enabled") if is_enabled else badge("warn", "disabled")


def host_state_badge(row: Host) -> SafeString:
    """Show whether a host takes new VMs and slots, and if not, why."""
    if row.is_ready:
        return badge("ok", "ready")
    why = []
    if row.state != "up":
        why.append(row.get_state_display())
    if row.status != "enabled":
        why.append("disabled")
    if row.maintenance not in {"", "ha"}:
        why.append(f"{row.get_maintenance_display()} maintenance")
    why.extend(hindering_conditions(row.conditions))
    return badge("bad" if row.state == "down" else "warn", ", ".join(why), row.disabled_reason)
