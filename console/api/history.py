"""``/api/v1``: what capacity was in the past."""

from __future__ import annotations

from django.db.models import BooleanField, ExpressionWrapper, Q
from rest_framework import serializers

from capacity.models import CapacityHistory, HistorySpan, HostHistory
from console.api.filters import (
    BeforeFilter,
    Filters,
    FlagFilter,
    SinceFilter,
    TextFilter,
    WordFilter,
)
from console.api.views import ReadViewSet, RowSerializer


class CapacityHistorySerializer(RowSerializer):
    """Capacity of a zone, or of a flavor group in it; a day is the mean of its hours."""

    flavor_group_name = serializers.CharField(source="group_name")
    is_whole_zone = serializers.BooleanField()

    class Meta:
        model = CapacityHistory
        fields = (
            "id",
            "span",
            "at",
            "zone",
            "flavor_group_name",
            "is_whole_zone",
            "hours",
            "is_made_up",
            "total_memory_bytes",
            "total_vcpus",
            "covered_memory_bytes",
            "covered_vcpus",
            "payg_memory_bytes",
            "payg_vcpus",
            "reserved_unused_memory_bytes",
            "reserved_unused_vcpus",
            "failover_memory_bytes",
            "failover_vcpus",
            "in_flight_memory_bytes",
            "in_flight_vcpus",
            "free_memory_bytes",
            "free_vcpus",
            "exclusively_free_memory_bytes",
            "exclusively_free_vcpus",
        )


class CapacityHistoryFilters(Filters):
    """Filters of hours and days."""

    zone = TextFilter()
    flavor_group_name = TextFilter(field_name="group_name")
    is_whole_zone = FlagFilter()
    span = WordFilter(choices=HistorySpan.choices)
    since = SinceFilter(field_name="at")
    before = BeforeFilter(field_name="at")


class CapacityHistoryViewSet(ReadViewSet):
    """Hours of 90 days and days of five years, of zones and of flavor groups in them."""

    path_label = "/api/v1/capacity-history"
    queryset = CapacityHistory.objects.annotate(
        is_whole_zone=ExpressionWrapper(Q(group_name=""), output_field=BooleanField())
    )
    serializer_class = CapacityHistorySerializer
    filterset_class = CapacityHistoryFilters
    lookup_field = "pk"
    orderings = {"zone": ("zone", "group_name", "span", "at")}
    default_ordering = "zone"


class HostHistorySerializer(RowSerializer):
    """The room of a host at the first look of a day."""

    class Meta:
        model = HostHistory
        fields = (
            "id",
            "day",
            "host_name",
            "is_made_up",
            "effective_memory_bytes",
            "effective_vcpus",
            "allocated_memory_bytes",
            "allocated_vcpus",
            "committed_memory_bytes",
            "committed_vcpus",
            "failover_memory_bytes",
            "failover_vcpus",
            "in_flight_memory_bytes",
            "in_flight_vcpus",
        )


class HostHistoryFilters(Filters):
    """Filters of days."""

    host_name = TextFilter()


class HostHistoryViewSet(ReadViewSet):
    """Days of hosts, 90 of each."""

    path_label = "/api/v1/host-history"
    queryset = HostHistory.objects.all()
    serializer_class = HostHistorySerializer
    filterset_class = HostHistoryFilters
    lookup_field = "pk"
    orderings = {"host_name": ("host_name", "day")}
    default_ordering = "host_name"
