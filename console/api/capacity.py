"""``/api/v1``: flavor groups, their capacity, reservations and scheduling decisions."""

from __future__ import annotations

from typing import Any

from django.db.models import F, Q, QuerySet
from rest_framework import serializers

from capacity.models import (
    FlavorGroup,
    GroupCapacity,
    ReadyReason,
    Reservation,
    ReservationAllocation,
    ReservationKind,
    SchedulingDecision,
)
from console.api.filters import (
    BeforeFilter,
    CreatedFilters,
    Filters,
    FlagFilter,
    SinceFilter,
    TextFilter,
    UUIDFilter,
    WordFilter,
)
from console.api.names import project_name, vm_name
from console.api.views import LogViewSet, ReadViewSet, RowSerializer
from hosts.models import Host


class FlavorGroupSerializer(RowSerializer):
    """Flavors that are committed together; a ratio is null where flavors differ in it."""

    smallest_flavor_name = serializers.CharField(source="smallest_flavor.name")
    largest_flavor_name = serializers.CharField(source="largest_flavor.name")
    flavor_names: serializers.SlugRelatedField[Any] = serializers.SlugRelatedField(  # Any: rows
        source="flavors", slug_field="name", many=True, read_only=True
    )

    class Meta:
        model = FlavorGroup
        fields = (
            "name",
            "flavor_names",
            "smallest_flavor_name",
            "largest_flavor_name",
            "ram_core_ratio_mib",
            "ram_core_ratio_min_mib",
            "ram_core_ratio_max_mib",
            "is_retired",
            "resized_at",
            "created_at",
            "updated_at",
        )


class FlavorGroupFilters(Filters):
    """Filters of flavor groups."""

    name = TextFilter()
    is_retired = FlagFilter()


class FlavorGroupViewSet(ReadViewSet):
    """Flavor groups and their flavors."""

    path_label = "/api/v1/flavor-groups"
    queryset = FlavorGroup.objects.select_related(
        "smallest_flavor", "largest_flavor"
    ).prefetch_related("flavors")
    serializer_class = FlavorGroupSerializer
    filterset_class = FlavorGroupFilters
    lookup_field = "name"
    orderings = {"name": ("name",)}
    default_ordering = "name"


class GroupCapacitySerializer(RowSerializer):
    """Capacity of a group in a zone, as the report to Limes has it."""

    flavor_group_name = serializers.CharField(source="group_name")

    class Meta:
        model = GroupCapacity
        fields = (
            "id",
            "flavor_group_name",
            "zone",
            "smallest_flavor_name",
            "total_memory_bytes",
            "total_vcpus",
            "free_memory_bytes",
            "free_vcpus",
            "exclusively_free_memory_bytes",
            "exclusively_free_vcpus",
            "exclusively_free_slots",
            "running_instances",
            "running_slots",
            "running_memory_bytes",
            "running_vcpus",
            "reserved_unused_memory_bytes",
            "reserved_unused_vcpus",
            "reserved_unused_slots",
            "committed_memory_bytes",
            "committed_slots",
            "is_ready",
            "ready_reason",
            "ready_message",
            "computed_at",
        )


class GroupCapacityFilters(Filters):
    """Filters of capacity."""

    flavor_group_name = TextFilter(field_name="group_name")
    zone = TextFilter()
    is_ready = FlagFilter()


class GroupCapacityViewSet(ReadViewSet):
    """Capacity of each flavor group in each zone."""

    path_label = "/api/v1/group-capacity"
    queryset = GroupCapacity.objects.all()
    serializer_class = GroupCapacitySerializer
    filterset_class = GroupCapacityFilters
    lookup_field = "pk"
    orderings = {"flavor_group_name": ("group_name", "zone")}
    default_ordering = "flavor_group_name"


class ReservedVMSerializer(RowSerializer):
    """A VM in a reservation, or the part of it that is in there."""

    class Meta:
        model = ReservationAllocation
        fields = (
            "vm_uuid",
            "state",
            "memory_bytes",
            "vcpus",
            "since",
            "confirmed_at",
            "missing_since",
        )


class ReservationSerializer(RowSerializer):
    """Room that is held on a host: a slot of a commitment, for failover, or for a placement."""

    flavor_name = serializers.CharField(source="resource_name")
    project_name = serializers.CharField(allow_null=True)
    commitment_uuid = serializers.CharField(allow_null=True)
    target_host_name = serializers.CharField(allow_null=True)
    confirmed_host_name = serializers.CharField(allow_null=True)
    failover_name = serializers.CharField(allow_null=True)
    vms = ReservedVMSerializer(source="allocations", many=True)

    class Meta:
        model = Reservation
        fields = (
            "uuid",
            "kind",
            "zone",
            "flavor_group_name",
            "flavor_name",
            "project_id",
            "project_name",
            "commitment_uuid",
            "slot_index",
            "failover_name",
            "vm_uuid",
            "target_host_name",
            "confirmed_host_name",
            "memory_bytes",
            "vcpus",
            "blocked_memory_bytes",
            "blocked_vcpus",
            "start_time",
            "end_time",
            "is_ready",
            "ready_reason",
            "ready_message",
            "ready_changed_at",
            "creator_request_id",
            "generation",
            "vms",
            "created_at",
            "updated_at",
        )


class ReservationFilters(Filters):
    """Filters of reservations."""

    uuid = UUIDFilter()
    kind = WordFilter(choices=ReservationKind.choices)
    zone = TextFilter()
    flavor_group_name = TextFilter()
    project_id = TextFilter()
    commitment_uuid = TextFilter(field_name="commitment__commitment_uuid")
    host_name = TextFilter(method="on_host")
    vm_uuid = TextFilter(method="of_vm")
    is_ready = FlagFilter()
    ready_reason = WordFilter(choices=ReadyReason.choices)
    ends_since = SinceFilter(field_name="end_time")
    ends_before = BeforeFilter(field_name="end_time")

    def on_host(self, rows: QuerySet[Reservation], _: str, name: str) -> QuerySet[Reservation]:
        """Return those that are on a host or are going there."""
        host_id = Host.objects.filter(name=name).values_list("pk", flat=True).first()
        if host_id is None:
            return rows.none()
        return rows.filter(Q(target_host_id=host_id) | Q(confirmed_host_id=host_id))

    def of_vm(self, rows: QuerySet[Reservation], _: str, uuid: str) -> QuerySet[Reservation]:
        """Return those that a VM is in, and those that were made for its placement."""
        holding = ReservationAllocation.objects.filter(vm_uuid=uuid).values("reservation_id")
        return rows.filter(Q(vm_uuid=uuid) | Q(pk__in=holding))


class ReservationViewSet(ReadViewSet):
    """Room that is held on hosts."""

    path_label = "/api/v1/reservations"
    queryset = (
        Reservation.objects.defer("decision")
        .annotate(
            project_name=project_name(),
            commitment_uuid=F("commitment__commitment_uuid"),
            target_host_name=F("target_host__name"),
            confirmed_host_name=F("confirmed_host__name"),
            failover_name=F("failover__name"),
        )
        .prefetch_related("allocations")
    )
    serializer_class = ReservationSerializer
    filterset_class = ReservationFilters
    lookup_field = "uuid"
    orderings = {"uuid": ("uuid",), "created": ("id",)}
    default_ordering = "uuid"


class DecisionSerializer(RowSerializer):
    """A run of a scheduling pipeline: what was asked, what removed hosts, who won."""

    project_name = serializers.CharField(allow_null=True)
    vm_name = serializers.CharField(allow_null=True)

    class Meta:
        model = SchedulingDecision
        fields = (
            "id",
            "created_at",
            "is_successful",
            "outcome_class",
            "message",
            "vm_uuid",
            "vm_name",
            "project_id",
            "project_name",
            "request_id",
            "zone",
            "flavor_name",
            "flavor_group_name",
            "memory_bytes",
            "vcpus",
            "intent",
            "intent_reason",
            "pipeline_name",
            "pipeline_version",
            "hosts_in",
            "hosts_out",
            "target_host_name",
            "top_hosts",
            "removals",
            "duration_microseconds",
        )


class DecisionFilters(CreatedFilters):
    """Filters of scheduling decisions."""

    vm_uuid = TextFilter()
    project_id = TextFilter()
    request_id = TextFilter()
    zone = TextFilter()
    flavor_name = TextFilter()
    flavor_group_name = TextFilter()
    pipeline_name = TextFilter()
    target_host_name = TextFilter()
    is_successful = FlagFilter()


class DecisionViewSet(LogViewSet):
    """Scheduling decisions; the newest come first."""

    path_label = "/api/v1/decisions"
    queryset = SchedulingDecision.objects.defer("masks").annotate(
        project_name=project_name(), vm_name=vm_name()
    )
    serializer_class = DecisionSerializer
    filterset_class = DecisionFilters
