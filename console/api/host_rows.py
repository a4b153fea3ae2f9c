"""``/api/v1/hosts/NAME/...``: slots, VMs, events, conditions and evictions of a host (D.6)."""

from __future__ import annotations

from typing import Any

from django.db.models import Model, Q, QuerySet
from django.http import HttpResponse
from rest_framework.request import Request
from rest_framework.serializers import SerializerMethodField

from console.api.capacity import ReservationViewSet
from console.api.filters import Filters, TextFilter, WordFilter
from console.api.hosts import VMViewSet
from console.api.journal import AuditEntryViewSet
from console.api.views import LogViewSet, NothingThere, ReadViewSet, RowSerializer
from core.stored_text import shortened
from hosts.agents.cell_models import CellResource, HostCell
from hosts.agents.cells import effective_of
from hosts.agents.models import HostKey
from hosts.agents.workload_models import Workload
from hosts.domain.lifecycle import Phase
from hosts.models import (
    Eviction,
    EvictionEnd,
    Host,
    HostCondition,
    HostLifecycle,
    LifecycleKind,
)


class RowsOfHost(ReadViewSet):
    """A list of what belongs to the host that the path names."""

    host: Host | None = None

    def list(self, request: Request, name: str = "") -> HttpResponse:
        """Return a page of rows.

        Raises:
            NothingThere: there is no such host.
        """
        self.host = Host.objects.filter(name=name).first() if name.isprintable() else None
        if self.host is None:
            raise NothingThere("not found", f"there is no host {shortened(name)}")
        return super().list(request)

    def get_queryset(self) -> QuerySet[Any]:  # Any: of the list's model
        """Return the rows of the host."""
        rows: QuerySet[Any] = super().get_queryset()
        return rows if self.host is None else self.of_host(rows, self.host)

    def of_host(self, rows: QuerySet[Any], host: Host) -> QuerySet[Model]:  # Any: as above
        """Return those of a host."""
        raise NotImplementedError


class SlotsOfHost(RowsOfHost, ReservationViewSet):
    """Room that is held on a host, or that is going there."""

    path_label = "/api/v1/hosts/{name}/slots"

    def of_host(self, rows: QuerySet[Any], host: Host) -> QuerySet[Model]:  # Any: as above
        """Return those on the host."""
        return rows.filter(Q(target_host=host) | Q(confirmed_host=host))


class InstancesOfHost(RowsOfHost, VMViewSet):
    """VMs that the cloud has on a host."""

    path_label = "/api/v1/hosts/{name}/instances"

    def of_host(self, rows: QuerySet[Any], host: Host) -> QuerySet[Model]:  # Any: as above
        """Return those on the host."""
        return rows.filter(host=host)


class EventsOfHost(RowsOfHost, AuditEntryViewSet):
    """What was changed of a host, of its agent, its keys and its reservations."""

    path_label = "/api/v1/hosts/{name}/events"

    def of_host(self, rows: QuerySet[Any], host: Host) -> QuerySet[Model]:  # Any: as above
        """Return those about the host; of reservations and keys that are still known."""
        gwids = Workload.objects.filter(agent__host_name=host.name).values_list("gwid", flat=True)
        kids = HostKey.objects.filter(agent__host_name=host.name).values_list("kid", flat=True)
        return rows.filter(
            Q(object_type="host", object_id=host.name)
            | Q(object_type="host_workload", object_id__in=list(gwids))
            | Q(object_type="host_key", object_id__in=list(kids))
        )


class ConditionSerializer(RowSerializer):
    """A condition as the host reports it; since when is null if that was before we looked."""

    class Meta:
        model = HostCondition
        fields = ("type", "status", "reason", "message", "last_transition_at")


class ConditionFilters(Filters):
    """Filters of conditions."""

    type = TextFilter()
    status = TextFilter()


class ConditionsOfHost(RowsOfHost):
    """What a host reports of itself, and since when."""

    path_label = "/api/v1/hosts/{name}/conditions"
    queryset = HostCondition.objects.all()
    serializer_class = ConditionSerializer
    filterset_class = ConditionFilters
    orderings = {"type": ("type",)}
    default_ordering = "type"

    def of_host(self, rows: QuerySet[Any], host: Host) -> QuerySet[Model]:  # Any: as above
        """Return those of the host."""
        return rows.filter(host=host)


class CellSerializer(RowSerializer):
    """What a NUMA cell has of a resource, and what is taken of it: CPUs, else bytes."""

    effective_capacity = SerializerMethodField(help_text="what may be promised of it")

    class Meta:
        model = HostCell
        fields = ("cell", "resource", "capacity", "effective_capacity", "allocated")

    def get_effective_capacity(self, row: HostCell) -> int:
        """As its host says it, else by the ratio of the host."""
        return effective_of(row, row.host)


class CellFilters(Filters):
    """Filters of NUMA cells."""

    resource = WordFilter(choices=CellResource.choices)


class CellsOfHost(RowsOfHost):
    """The NUMA cells of a host, as its object says or its agent reports."""

    path_label = "/api/v1/hosts/{name}/cells"
    queryset = HostCell.objects.select_related("host")
    serializer_class = CellSerializer
    filterset_class = CellFilters
    orderings = {"cell": ("cell", "resource")}
    default_ordering = "cell"

    def of_host(self, rows: QuerySet[Any], host: Host) -> QuerySet[Model]:  # Any: as above
        """Return those of the host."""
        return rows.filter(host=host)


class EvictionSerializer(RowSerializer):
    """An order that a host becomes empty, and what is left on it."""

    class Meta:
        model = Eviction
        fields = (
            "id",
            "reason",
            "opened_by",
            "opened_at",
            "looked_at",
            "outstanding_vms",
            "outstanding_memory_bytes",
            "outstanding",
            "moving_uuid",
            "failed",
            "trouble",
            "service_disabled",
            "closed_at",
            "end",
        )


class EvictionFilters(Filters):
    """Filters of evictions."""

    end = WordFilter(choices=EvictionEnd.choices)


class EvictionsOfHost(RowsOfHost, LogViewSet):
    """Orders that a host becomes empty; the newest come first."""

    path_label = "/api/v1/hosts/{name}/evictions"
    queryset = Eviction.objects.all()
    serializer_class = EvictionSerializer
    filterset_class = EvictionFilters

    def of_host(self, rows: QuerySet[Any], host: Host) -> QuerySet[Model]:  # Any: as above
        """Return those of the host."""
        return rows.filter(host=host)


class LifecycleSerializer(RowSerializer):
    """One way of a host into service or out of it, and what comes next."""

    class Meta:
        model = HostLifecycle
        fields = (
            "id",
            "kind",
            "phase",
            "wanted",
            "reason",
            "opened_by",
            "opened_at",
            "looked_at",
            "waits_for",
            "trouble",
            "tests",
            "tried_at",
            "closed_at",
        )


class LifecycleFilters(Filters):
    """Filters of life cycles."""

    kind = WordFilter(choices=LifecycleKind.choices)
    phase = WordFilter(choices=[(one.value, one.value) for one in Phase])


class LifecyclesOfHost(RowsOfHost, LogViewSet):
    """How a host was brought into service and out of it; the newest come first."""

    path_label = "/api/v1/hosts/{name}/lifecycles"
    queryset = HostLifecycle.objects.all()
    serializer_class = LifecycleSerializer
    filterset_class = LifecycleFilters

    def of_host(self, rows: QuerySet[Any], host: Host) -> QuerySet[Model]:  # Any: as above
        """Return those of the host."""
        return rows.filter(host_name=host.name)


ROWS_OF_HOSTS: tuple[type[RowsOfHost], ...] = (
    SlotsOfHost,
    InstancesOfHost,
    EventsOfHost,
    ConditionsOfHost,
    CellsOfHost,
    EvictionsOfHost,
    LifecyclesOfHost,
)
