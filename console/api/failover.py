"""``/api/v1``: failover reservations, VMs without enough of them, runs and events."""

from __future__ import annotations

from django.contrib.postgres.expressions import ArraySubquery
from django.db.models import F, OuterRef, QuerySet, Subquery
from rest_framework import serializers

from capacity.models import Reservation, ReservationAllocation
from console.api.filters import (
    BeforeFilter,
    Filters,
    FlagFilter,
    SinceFilter,
    StartedFilters,
    TextFilter,
    WordFilter,
)
from console.api.names import vm_name
from console.api.views import LogViewSet, ReadViewSet, RowSerializer
from failover.choices import EventReason, RunOutcome, SlotState, Uncovered
from failover.models import FailoverDecision, FailoverEvent, FailoverReservation, FailoverRun
from hosts.models import Instance

VM_UUIDS = ArraySubquery(
    ReservationAllocation.objects.filter(reservation=OuterRef("reservation_id"))
    .order_by("vm_uuid")
    .values("vm_uuid")
)
VM = Instance.objects.filter(openstack_id=OuterRef("vm_uuid")).order_by()


class FailoverReservationSerializer(RowSerializer):
    """Room on ``host_name`` that VMs of other hosts share."""

    uuid = serializers.UUIDField(source="reservation.uuid")
    zone = serializers.CharField(source="reservation.zone")
    host_name = serializers.CharField(allow_null=True)
    memory_bytes = serializers.IntegerField(source="reservation.memory_bytes")
    vcpus = serializers.IntegerField(source="reservation.vcpus")
    blocked_memory_bytes = serializers.IntegerField(source="reservation.blocked_memory_bytes")
    blocked_vcpus = serializers.IntegerField(source="reservation.blocked_vcpus")
    vm_uuids = serializers.ListField(child=serializers.CharField())

    class Meta:
        model = FailoverReservation
        fields = (
            "name",
            "uuid",
            "zone",
            "host_name",
            "state",
            "memory_bytes",
            "vcpus",
            "blocked_memory_bytes",
            "blocked_vcpus",
            "vm_uuids",
            "last_changed_at",
            "acknowledged_at",
            "next_validation_at",
            "created_at",
            "updated_at",
        )


class FailoverReservationFilters(Filters):
    """Filters of failover reservations."""

    name = TextFilter()
    zone = TextFilter(field_name="reservation__zone")
    state = WordFilter(choices=SlotState.choices)
    host_name = TextFilter(field_name="reservation__target_host__name")
    vm_uuid = TextFilter(method="of_vm")

    def of_vm(
        self, rows: QuerySet[FailoverReservation], _: str, uuid: str
    ) -> QuerySet[FailoverReservation]:
        """Return those that a VM is in."""
        return rows.filter(
            reservation__in=Reservation.objects.filter(allocations__vm_uuid=uuid).values("pk")
        )


class FailoverReservationViewSet(ReadViewSet):
    """Room for VMs whose host dies."""

    path_label = "/api/v1/failover-reservations"
    queryset = (
        FailoverReservation.objects.select_related("reservation")
        .defer("reservation__decision")
        .annotate(host_name=F("reservation__target_host__name"), vm_uuids=VM_UUIDS)
    )
    serializer_class = FailoverReservationSerializer
    filterset_class = FailoverReservationFilters
    lookup_field = "name"
    orderings = {"name": ("name",)}
    default_ordering = "name"


class UncoveredVMSerializer(RowSerializer):
    """A VM with fewer failover reservations than it needs, and why."""

    vm_name = serializers.CharField(allow_null=True)
    project_id = serializers.CharField(allow_null=True)
    host_name = serializers.CharField(allow_null=True)

    class Meta:
        model = FailoverDecision
        fields = (
            "vm_uuid",
            "vm_name",
            "project_id",
            "zone",
            "host_name",
            "required_count",
            "current_count",
            "reason",
            "facts",
            "since",
            "tried_at",
        )


class UncoveredVMFilters(Filters):
    """Filters of VMs without enough failover reservations."""

    vm_uuid = TextFilter()
    zone = TextFilter()
    reason = WordFilter(choices=Uncovered.choices)
    uncovered_since = SinceFilter(field_name="since")
    uncovered_before = BeforeFilter(field_name="since")


class UncoveredVMViewSet(ReadViewSet):
    """VMs that would not survive the loss of their host."""

    path_label = "/api/v1/uncovered-vms"
    queryset = FailoverDecision.objects.annotate(
        vm_name=vm_name(),
        project_id=Subquery(VM.values("project_id")[:1]),
        host_name=Subquery(VM.values("host__name")[:1]),
    )
    serializer_class = UncoveredVMSerializer
    filterset_class = UncoveredVMFilters
    lookup_field = "vm_uuid"
    orderings = {"vm_uuid": ("vm_uuid",)}
    default_ordering = "vm_uuid"


class FailoverRunSerializer(RowSerializer):
    """A run of the loop in a zone."""

    class Meta:
        model = FailoverRun
        fields = (
            "id",
            "zone",
            "number",
            "started_at",
            "finished_at",
            "outcome",
            "is_dry_run",
            "request_id",
            "counts",
            "error_code",
            "message",
        )


class FailoverRunFilters(StartedFilters):
    """Filters of runs of the loop."""

    zone = TextFilter()
    outcome = WordFilter(choices=RunOutcome.choices)
    is_dry_run = FlagFilter()
    request_id = TextFilter()


class FailoverRunViewSet(LogViewSet):
    """Runs of the failover loop; the newest come first."""

    path_label = "/api/v1/failover-runs"
    queryset = FailoverRun.objects.all()
    serializer_class = FailoverRunSerializer
    filterset_class = FailoverRunFilters


class FailoverEventSerializer(RowSerializer):
    """What happened to a failover reservation or to the coverage of a VM."""

    class Meta:
        model = FailoverEvent
        fields = (
            "id",
            "happened_at",
            "reason",
            "is_warning",
            "zone",
            "reservation_name",
            "host_name",
            "vm_uuid",
            "message",
            "facts",
            "request_id",
        )


class FailoverEventFilters(Filters):
    """Filters of events."""

    reason = WordFilter(choices=EventReason.choices)
    is_warning = FlagFilter()
    zone = TextFilter()
    reservation_name = TextFilter()
    host_name = TextFilter()
    vm_uuid = TextFilter()
    request_id = TextFilter()
    happened_since = SinceFilter(field_name="happened_at")
    happened_before = BeforeFilter(field_name="happened_at")


class FailoverEventViewSet(LogViewSet):
    """What happened to failover reservations and coverage; the newest come first."""

    path_label = "/api/v1/failover-events"
    queryset = FailoverEvent.objects.all()
    serializer_class = FailoverEventSerializer
    filterset_class = FailoverEventFilters
