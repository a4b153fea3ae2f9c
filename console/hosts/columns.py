"""Columns, filters and words about hosts and projects that admin pages of several apps share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from django.db.models import F, Func, Model, OuterRef, Q, QuerySet, Subquery
from django.http import HttpRequest
from django.utils.safestring import SafeString

from console.base import AnswerFilter, ChoiceFilter, badge
from hosts.domain.readiness import hindering_conditions
from hosts.models import Host, HostState, HostStatus, Instance, Maintenance, Project

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


def with_vm_name(queryset: QuerySet[RowT]) -> QuerySet[RowT]:
    """Annotate ``vm_name`` from the row's ``vm_uuid``; None once the VM is gone."""
    names = Instance.objects.filter(openstack_id=OuterRef("vm_uuid")).values("name")[:1]
    annotated: QuerySet[RowT] = queryset.annotate(vm_name=Subquery(names))
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
    if row.fenced_since is not None:
        why.append("fenced")
    if row.status != "enabled":
        why.append("disabled")
    if row.maintenance not in {"", "ha"}:
        why.append(f"{row.get_maintenance_display()} maintenance")
    why.extend(hindering_conditions(row.conditions, row.condition_reasons))
    return badge("bad" if row.state == "down" else "warn", ", ".join(why), row.disabled_reason)


READY_HOST = Q(
    state=HostState.UP,
    is_lost=False,
    status=HostStatus.ENABLED,
    maintenance__in=[Maintenance.NONE, Maintenance.HA],
)


class ZoneFilter(ChoiceFilter):
    """Rows of one availability zone."""

    title = "zone"
    parameter_name = "zone"
    field = "zone"

    def words(self) -> Sequence[tuple[str, str]]:
        """Return the zones that hosts are in."""
        zones = Host.objects.order_by("zone").values_list("zone", flat=True).distinct()
        return [(zone, zone) for zone in zones if zone]


class TraitFilter(ChoiceFilter):
    """Hosts that have a trait."""

    title = "trait"
    parameter_name = "trait"

    def words(self) -> Sequence[tuple[str, str]]:
        """Return every trait that a host has."""
        traits = Host.objects.order_by().values_list(
            Func(F("traits"), function="unnest"), flat=True
        )
        return [(trait, trait) for trait in sorted(set(traits.distinct()))]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        """Keep hosts with the trait."""
        chosen = self.value()
        return queryset if chosen is None else queryset.filter(traits__contains=[chosen])


class ReadyFilter(AnswerFilter):
    """Hosts that take new VMs and slots, or do not."""

    title = "ready"
    parameter_name = "ready"
    answers = {"yes": ("ready", lambda: READY_HOST), "no": ("not ready", lambda: ~READY_HOST)}
