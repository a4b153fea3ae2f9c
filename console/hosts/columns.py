"""Columns, filters and words about hosts and projects that admin pages of several apps share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from django.db.models import F, Func, OuterRef, Q, QuerySet, Subquery
from django.http import HttpRequest
from django.utils.safestring import SafeString

from console.base import AnswerFilter, BoundedSearch, ChoiceFilter, RowT, badge
from hosts.domain.readiness import hindering_conditions
from hosts.models import Aggregate, Host, HostState, HostStatus, Instance, Maintenance, Project

CLOUD_NOTE = (
    "Mirrored from OpenStack by import and sync. Change it in OpenStack; the next run brings it "
    "here."
)
CLOUD_EMPTY = (
    "Nothing was read from a cloud yet: ./run manage connect CLOUD does it (docs/first-day.md), "
    "./run manage import_region FILE takes a file instead (docs/region-files.md)."
)

LONGEST_NAME: Final = 255
#: So many projects or VMs of one name are looked for.
MOST_NAMED: Final = 100


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


class FoundByName(BoundedSearch[RowT]):
    """Rows that hold ids of projects and VMs, found by whole names of these as well."""

    named_columns: Mapping[str, type[Project] | type[Instance]] = {}
    """Columns with such ids, and what they are of."""

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[RowT], search_term: str
    ) -> tuple[QuerySet[RowT], bool]:
        """Find rows by the fields of the list, and by names."""
        found, is_doubled = super().get_search_results(request, queryset, search_term)
        name = search_term.strip()
        if not name or len(name) > LONGEST_NAME or not name.isprintable():
            return found, is_doubled
        for column, model in self.named_columns.items():
            called: QuerySet[Any] = model._default_manager.filter(name=name).order_by()  # noqa: SLF001 - public model API
            ids = list(called.values_list("openstack_id", flat=True)[:MOST_NAMED])
            if ids:
                found |= queryset.filter(**{f"{column}__in": ids})
        return found, is_doubled


def enabled_badge(*, is_enabled: bool) -> SafeString:
    """Show whether a row is enabled."""
    return badge("ok", "enabled") if is_enabled else badge("warn", "disabled")


def host_state(row: Host) -> tuple[str, str]:
    """Return tone and words: whether a host takes new VMs and slots, and if not, why."""
    if row.is_ready:
        return "ok", "ready"
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
    return "bad" if row.state == "down" else "warn", ", ".join(why)


def host_state_badge(row: Host) -> SafeString:
    """Show whether a host takes new VMs and slots, and if not, why."""
    tone, words = host_state(row)
    return badge(tone, words, "" if tone == "ok" else row.disabled_reason)


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


class AggregateFilter(ChoiceFilter):
    """Hosts that are members of an aggregate."""

    title = "aggregate"
    parameter_name = "aggregate"

    def words(self) -> Sequence[tuple[str, str]]:
        """Return every aggregate, by name."""
        return list(Aggregate.objects.order_by("name", "uuid").values_list("uuid", "name"))

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        """Keep hosts that the aggregate names."""
        chosen = self.value()
        if chosen is None:
            return queryset
        members = Aggregate.objects.filter(uuid=chosen)
        return queryset.filter(
            name__in=members.values_list(Func(F("host_names"), function="unnest"))
        )


class ReadyFilter(AnswerFilter):
    """Hosts that take new VMs and slots, or do not."""

    title = "ready"
    parameter_name = "ready"
    answers = {"yes": ("ready", lambda: READY_HOST), "no": ("not ready", lambda: ~READY_HOST)}
