"""``/api/v1``: hosts, VMs, flavors, projects, domains, and the passes of the feed."""

from __future__ import annotations

from typing import Any

from django.db.models import BooleanField, Case, F, OuterRef, Q, QuerySet, Subquery, Value, When
from django.db.models.functions import Coalesce
from django.http import HttpResponse
from rest_framework import serializers
from rest_framework.request import Request

from capacity.models import HostCapacity
from capacity.offboarding import listed_state, with_holdings
from console.api.filters import (
    BeforeFilter,
    Filters,
    FlagFilter,
    SinceFilter,
    TextFilter,
    WordFilter,
)
from console.api.names import domain_name, project_name
from console.api.views import ReadViewSet, RowSerializer
from core.api import json_answer
from hosts.agents.models import AgentMode, HostAgent
from hosts.agents.order_views import host_order
from hosts.domain.liveness import UNMANAGED, Liveness
from hosts.models import (
    Domain,
    FeedPass,
    Flavor,
    Host,
    HostState,
    HostStatus,
    Instance,
    Maintenance,
    Project,
)
from hosts.services.host_orders import UnknownHost, change_host
from journal.auth import RULE_API_WRITE, authenticate, authorise
from journal.middleware import request_id_of

LIVENESS = (UNMANAGED, *(one.value for one in Liveness))


class RoomSerializer(RowSerializer):
    """What a host has and what takes it."""

    class Meta:
        model = HostCapacity
        fields = (
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
            "oversubscribed_since",
        )


class ShownStateField(serializers.CharField):
    """The one word that lists show of a host."""

    def __init__(self) -> None:
        super().__init__(
            source="*",
            read_only=True,
            help_text="where in its life it is: onboarding, maintenance, evicting, evicted, "
            "terminating, offboarded; else its liveness",
        )

    def to_representation(self, value: Any) -> str:  # Any: a host with what the list annotates
        """Return the word."""
        return listed_state(value)


class HostSerializer(RowSerializer):
    """A hypervisor with its room; ``room`` is null until the ledger knows the host."""

    uuid = serializers.CharField(source="openstack_id")
    is_ready = serializers.BooleanField(help_text="takes new VMs and slots")
    agent_mode = serializers.ChoiceField(
        AgentMode.choices, help_text="what its agent is trusted with; none without one"
    )
    liveness = serializers.ChoiceField(
        [(word, word) for word in LIVENESS], help_text="whether its agent is heard"
    )
    shown_state = ShownStateField()
    room = RoomSerializer(allow_null=True)

    class Meta:
        model = Host
        fields = (
            "name",
            "uuid",
            "zone",
            "building_block",
            "hypervisor_type",
            "cpu_arch",
            "state",
            "status",
            "disabled_reason",
            "maintenance",
            "maintenance_reason",
            "is_ready",
            "slots_held_off",
            "agent_mode",
            "liveness",
            "shown_state",
            "down_since",
            "terminating_since",
            "total_memory_bytes",
            "total_vcpus",
            "total_disk_gib",
            "reserved_memory_bytes",
            "reserved_vcpus",
            "reserved_disk_gib",
            "effective_disk_gib",
            "room",
            "traits",
            "aggregate_uuids",
            "allowed_projects",
            "ordered_overcommit",
            "ruled_overcommit",
            "high_availability",
            "created_at",
            "updated_at",
        )


def _condition_allows(name: str) -> Q:
    """Return whether a condition is not stated, or False."""
    key = f"conditions__{name}"
    stated = Q(**{f"{key}__in": ["False", False]})
    return stated | Q(**{f"{key}__isnull": True}) | Q(**{key: None})


# As ``Host.is_ready`` says it.
_READY = (
    Q(state=HostState.UP, is_lost=False, status=HostStatus.ENABLED)
    & Q(maintenance__in=[Maintenance.NONE, Maintenance.HA])
    & (
        Q(conditions={})
        | Q(conditions__Ready__in=["True", True])
        & _condition_allows("HypervisorDisabled")
        & _condition_allows("Terminating")
    )
)


class HostFilters(Filters):
    """Filters of hosts."""

    name = TextFilter()
    uuid = TextFilter(field_name="openstack_id")
    zone = TextFilter()
    state = WordFilter(choices=HostState.choices)
    status = WordFilter(choices=HostStatus.choices)
    maintenance = WordFilter(choices=[choice for choice in Maintenance.choices if choice[0]])
    hypervisor_type = TextFilter()
    building_block = TextFilter()
    is_ready = WordFilter(choices=(("true", "true"), ("false", "false")), method="that_are_ready")
    agent_mode = WordFilter(choices=AgentMode.choices)
    liveness = WordFilter(choices=[(word, word) for word in LIVENESS])
    trait = TextFilter(method="with_trait")
    updated_since = SinceFilter(field_name="updated_at")

    def that_are_ready(self, rows: QuerySet[Host], _: str, wanted: str) -> QuerySet[Host]:
        """Return those that take new VMs, or those that do not."""
        is_ready = Case(When(_READY, then=True), default=False, output_field=BooleanField())
        return rows.alias(takes_new=is_ready).filter(takes_new=wanted == "true")

    def with_trait(self, rows: QuerySet[Host], _: str, name: str) -> QuerySet[Host]:
        """Return those that have a trait, of their provider or of their own."""
        return rows.filter(Q(traits__contains=[name]) | Q(custom_traits__contains=[name]))


def _agent_mode() -> Coalesce:
    """Return the mode of the host's agent; none without one."""
    agents = HostAgent.objects.filter(host_name=OuterRef("name"), decommissioned_at__isnull=True)
    return Coalesce(Subquery(agents.values("mode")[:1]), Value(AgentMode.NONE.value))


class HostViewSet(ReadViewSet):
    """Hypervisors, what they have and what takes it."""

    path_label = "/api/v1/hosts"
    queryset = with_holdings(
        Host.objects.select_related("room")
        .defer(
            "provider_inventories",
            "provider_traits",
            "nested_providers",
            "custom_traits",
            "domain_capabilities",
            "reported_instances",
        )
        .annotate(agent_mode=_agent_mode())
    )
    serializer_class = HostSerializer
    filterset_class = HostFilters
    lookup_field = "name"
    orderings = {"name": ("name",), "zone": ("zone", "name")}
    default_ordering = "name"
    http_method_names = ["get", "head", "patch"]
    written = {"patch": "change"}

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:  # Any: DRF's
        """Look who asks; orders have a rule of their own."""
        if self.action != "change":
            super().initial(request, *args, **kwargs)
            return
        self.actor = authenticate(self.http_request)
        authorise(self.actor, RULE_API_WRITE, kwargs)

    def change(self, request: Request, key: str) -> HttpResponse:
        """Change what the body names and return how the host is then.

        Raises:
            UnknownHost: there is none of this name.
        """
        order, reason = host_order(self.body())
        if not key.isprintable():
            raise UnknownHost(key)
        request_id = request_id_of(self.http_request)
        told = change_host(key, order, actor=self.actor, request_id=request_id, reason=reason)
        return json_answer(told)


class VMSerializer(RowSerializer):
    """A VM with its size and place; ``host_name`` is null where no known host carries it."""

    uuid = serializers.CharField(source="openstack_id")
    project_name = serializers.CharField(allow_null=True)
    host_name = serializers.CharField(source="known_host_name", allow_null=True)

    class Meta:
        model = Instance
        fields = (
            "uuid",
            "name",
            "project_id",
            "project_name",
            "user_id",
            "zone",
            "host_name",
            "flavor_name",
            "memory_bytes",
            "vcpus",
            "disk_gib",
            "status",
            "vm_state",
            "task_state",
            "os_type",
            "image_id",
            "launched_at",
            "nova_created_at",
            "nova_updated_at",
            "arrived_at",
            "updated_at",
        )


class VMFilters(Filters):
    """Filters of VMs."""

    uuid = TextFilter(field_name="openstack_id")
    name = TextFilter()
    project_id = TextFilter()
    zone = TextFilter()
    host_name = TextFilter(field_name="host__name")
    flavor_name = TextFilter()
    status = TextFilter()
    updated_since = SinceFilter(field_name="updated_at")


class VMViewSet(ReadViewSet):
    """VMs of the cloud."""

    path_label = "/api/v1/vms"
    queryset = Instance.objects.defer("flavor_extra_specs", "metadata").annotate(
        project_name=project_name(), known_host_name=F("host__name")
    )
    serializer_class = VMSerializer
    filterset_class = VMFilters
    lookup_field = "openstack_id"
    orderings = {"uuid": ("openstack_id",)}
    default_ordering = "uuid"


class FlavorSerializer(RowSerializer):
    """A flavor; ``flavor_group_name`` is null where no group has it."""

    id = serializers.CharField(source="openstack_id")
    flavor_group_name = serializers.CharField(allow_null=True)

    class Meta:
        model = Flavor
        fields = (
            "id",
            "name",
            "flavor_group_name",
            "memory_bytes",
            "vcpus",
            "disk_gib",
            "ephemeral_gib",
            "is_public",
            "extra_specs",
            "created_at",
            "updated_at",
        )


class FlavorFilters(Filters):
    """Filters of flavors."""

    id = TextFilter(field_name="openstack_id")
    name = TextFilter()
    flavor_group_name = TextFilter(field_name="membership__group__name")
    is_public = FlagFilter()


class FlavorViewSet(ReadViewSet):
    """Flavors of the cloud."""

    path_label = "/api/v1/flavors"
    queryset = Flavor.objects.annotate(flavor_group_name=F("membership__group__name"))
    serializer_class = FlavorSerializer
    filterset_class = FlavorFilters
    lookup_field = "name"
    orderings = {"name": ("name",), "id": ("openstack_id",)}
    default_ordering = "name"


class ProjectSerializer(RowSerializer):
    """A project of Keystone."""

    id = serializers.CharField(source="openstack_id")
    domain_name = serializers.CharField(allow_null=True)

    class Meta:
        model = Project
        fields = (
            "id",
            "name",
            "domain_id",
            "domain_name",
            "parent_id",
            "is_enabled",
            "created_at",
            "updated_at",
        )


class ProjectFilters(Filters):
    """Filters of projects."""

    id = TextFilter(field_name="openstack_id")
    name = TextFilter()
    domain_id = TextFilter()
    is_enabled = FlagFilter()


class ProjectViewSet(ReadViewSet):
    """Projects of Keystone."""

    path_label = "/api/v1/projects"
    queryset = Project.objects.annotate(domain_name=domain_name())
    serializer_class = ProjectSerializer
    filterset_class = ProjectFilters
    lookup_field = "openstack_id"
    orderings = {"id": ("openstack_id",)}
    default_ordering = "id"


class DomainSerializer(RowSerializer):
    """A domain of Keystone."""

    id = serializers.CharField(source="openstack_id")

    class Meta:
        model = Domain
        fields = ("id", "name", "is_enabled", "created_at", "updated_at")


class DomainFilters(Filters):
    """Filters of domains."""

    id = TextFilter(field_name="openstack_id")
    name = TextFilter()
    is_enabled = FlagFilter()


class DomainViewSet(ReadViewSet):
    """Domains of Keystone."""

    path_label = "/api/v1/domains"
    queryset = Domain.objects.all()
    serializer_class = DomainSerializer
    filterset_class = DomainFilters
    lookup_field = "openstack_id"
    orderings = {"id": ("openstack_id",)}
    default_ordering = "id"


class FeedPassSerializer(RowSerializer):
    """How far the feed is with one kind of lists; ``listed_at`` says how old they are."""

    class Meta:
        model = FeedPass
        fields = (
            "kind",
            "passes",
            "began_at",
            "finished_at",
            "listed_at",
            "counts",
            "refusal",
            "error",
            "failures",
        )


class FeedPassFilters(Filters):
    """Filters of passes of the feed."""

    kind = TextFilter()
    finished_since = SinceFilter(field_name="finished_at")
    finished_before = BeforeFilter(field_name="finished_at")


class FeedPassViewSet(ReadViewSet):
    """The last pass of the feed over each kind of lists."""

    path_label = "/api/v1/feed-passes"
    queryset = FeedPass.objects.all()
    serializer_class = FeedPassSerializer
    filterset_class = FeedPassFilters
    lookup_field = "kind"
    orderings = {"kind": ("kind",)}
    default_ordering = "kind"
