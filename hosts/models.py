"""What exists in the region: hosts, VMs, flavors, aggregates, images, projects."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal

from django.contrib.postgres.fields import ArrayField
from django.contrib.postgres.indexes import GinIndex, OpClass
from django.core.validators import MinValueValidator
from django.db import models
from django.db.models import F, Func, Q
from django.db.models.functions import Now, Upper
from django.utils.dateparse import parse_datetime

from hosts.domain.readiness import hindering_conditions
from journal.models import FollowedModel, TouchedField, TrackedModel

OS_VERSION_MAX = 64


def ratio_field() -> models.DecimalField[Decimal, Decimal]:
    """Return an overcommit ratio column: 1.0 unless configured (decisions)."""
    return models.DecimalField(
        max_digits=8,
        decimal_places=4,
        default=Decimal(1),
        validators=[MinValueValidator(Decimal("0.0001"))],
    )


def parts_of_names(name: str) -> GinIndex:
    """Return an index that finds three letters anywhere in a name, of any case."""
    return GinIndex(OpClass(Upper("name"), name="gin_trgm_ops"), name=name)


class Region(models.Model):
    """Where the rows came from: one row, written by the import.

    Invariant: at most one row (``singleton`` is always true and unique).
    """

    singleton = models.BooleanField(default=True, unique=True, editable=False)
    name = models.CharField(max_length=255, blank=True)
    taken_at = models.CharField(max_length=64, blank=True)
    source = models.TextField(blank=True)
    versions = models.JSONField(default=dict)

    class Meta:
        constraints = [
            models.CheckConstraint(condition=Q(singleton=True), name="hosts_region_singleton")
        ]

    def __str__(self) -> str:
        return self.name or "region"

    @property
    def listed_at(self) -> datetime | None:
        """When the lists were taken, where the file says so."""
        try:
            taken_at = parse_datetime(self.taken_at)
        except ValueError:
            return None
        return taken_at.replace(tzinfo=taken_at.tzinfo or UTC) if taken_at else None


class Domain(TrackedModel):
    """A Keystone domain. Writers: import, sync."""

    openstack_id = models.CharField(max_length=64, unique=True)
    name = models.CharField(max_length=255)
    is_enabled = models.BooleanField(default=True)

    class Meta:
        ordering = ("name", "id")
        indexes = [parts_of_names("hosts_domain_parts_idx")]

    def __str__(self) -> str:
        return self.name


class Project(TrackedModel):
    """A Keystone project. Writers: import, sync."""

    openstack_id = models.CharField(max_length=64, unique=True)
    name = models.CharField(max_length=255)
    domain_id = models.CharField(max_length=64, blank=True, db_index=True)
    parent_id = models.CharField(max_length=64, blank=True)
    is_enabled = models.BooleanField(default=True)

    class Meta:
        ordering = ("name", "id")
        indexes = [
            models.Index(
                fields=["name"], opclasses=["varchar_pattern_ops"], name="hosts_project_name_idx"
            ),
            parts_of_names("hosts_project_parts_idx"),
        ]

    def __str__(self) -> str:
        return self.name


class Flavor(TrackedModel):
    """A Nova flavor. Writers: import, sync."""

    openstack_id = models.CharField(max_length=255, unique=True)
    name = models.CharField(max_length=255, unique=True)
    vcpus = models.PositiveIntegerField()
    memory_bytes = models.BigIntegerField()
    disk_gib = models.PositiveIntegerField(default=0)
    ephemeral_gib = models.PositiveIntegerField(default=0)
    is_public = models.BooleanField(default=True)
    extra_specs = models.JSONField(default=dict, blank=True)

    class Meta:
        ordering = ("name",)
        indexes = [parts_of_names("hosts_flavor_parts_idx")]
        constraints = [
            models.CheckConstraint(
                condition=Q(memory_bytes__gte=0), name="hosts_flavor_memory_not_negative"
            )
        ]

    def __str__(self) -> str:
        return self.name


class Aggregate(FollowedModel):
    """A Nova host aggregate; the one with ``availability_zone`` metadata gives hosts their zone."""

    uuid = models.CharField(max_length=64, unique=True)
    nova_number = models.IntegerField(
        null=True, blank=True, help_text="What Nova's addresses call it, as far as a list told it."
    )
    name = models.CharField(max_length=255)
    metadata = models.JSONField(default=dict, blank=True)
    host_names = ArrayField(models.CharField(max_length=255), default=list, blank=True)

    class Meta:
        ordering = ("name", "id")
        indexes = [parts_of_names("hosts_aggregate_parts_idx")]

    def __str__(self) -> str:
        return self.name


class HostState(models.TextChoices):
    """Whether the compute service answers."""

    UP = "up", "up"
    DOWN = "down", "down"
    UNKNOWN = "unknown", "unknown"


class HostStatus(models.TextChoices):
    """Whether the operator lets VMs be scheduled here."""

    ENABLED = "enabled", "enabled"
    DISABLED = "disabled", "disabled"


class Maintenance(models.TextChoices):
    """Why a host is taken out of service (spec hosts, C.1)."""

    NONE = "", "none"
    MANUAL = "manual", "manual"
    AUTO = "auto", "auto"
    HA = "ha", "high availability"
    TERMINATION = "termination", "termination"


class Host(FollowedModel):
    """One hypervisor: what it physically has and what may be promised on it.

    ``effective_*`` is ``floor((total - reserved) * ratio)``, written together with its inputs. What
    is held and allocated lives in ``capacity.HostCapacity``. Writers: import, sync.

    ``down_since`` and ``terminating_since`` are kept by a trigger, whoever writes the row: set by
    the clock of the database when the host goes down or into termination, kept while that lasts.
    ``is_lost`` is what evacuations go by, wherever they are planned, inferred or claimed.
    """

    name = models.CharField(max_length=255, unique=True)
    openstack_id = models.CharField(max_length=64, db_index=True)
    service_host = models.CharField(max_length=255, blank=True)
    service_id = models.CharField(max_length=64, blank=True)
    zone = models.CharField(max_length=255, blank=True, db_index=True)
    hypervisor_type = models.CharField(max_length=64, blank=True)
    cpu_arch = models.CharField(max_length=32, blank=True)
    os_version = models.CharField(
        max_length=OS_VERSION_MAX,
        blank=True,
        default="",
        db_default="",
        help_text="of its operating system, as the host reports it",
    )
    state = models.CharField(max_length=16, choices=HostState.choices, default=HostState.UNKNOWN)
    status = models.CharField(
        max_length=16, choices=HostStatus.choices, default=HostStatus.DISABLED
    )
    disabled_reason = models.TextField(blank=True)
    maintenance = models.CharField(
        max_length=16, choices=Maintenance.choices, default=Maintenance.NONE, blank=True
    )
    maintenance_reason = models.TextField(blank=True, default="", db_default="")
    down_since = models.DateTimeField(null=True, blank=True, editable=False)
    terminating_since = models.DateTimeField(null=True, blank=True, editable=False)
    fenced_since = models.DateTimeField(
        null=True,
        blank=True,
        editable=False,
        help_text="when an operator fenced it; empty since its agent is heard again",
    )
    is_lost = models.GeneratedField(
        expression=Q(state=HostState.DOWN) | Q(fenced_since__isnull=False),  # type: ignore[arg-type]
        output_field=models.BooleanField(),
        db_persist=True,
    )
    total_vcpus = models.BigIntegerField(default=0)
    total_memory_bytes = models.BigIntegerField(default=0)
    total_disk_gib = models.BigIntegerField(default=0)
    reserved_vcpus = models.BigIntegerField(default=0)
    reserved_memory_bytes = models.BigIntegerField(default=0)
    reserved_disk_gib = models.BigIntegerField(default=0)
    vcpus_ratio = ratio_field()
    memory_ratio = ratio_field()
    disk_ratio = ratio_field()
    effective_vcpus = models.BigIntegerField(default=0)
    effective_memory_bytes = models.BigIntegerField(default=0)
    effective_disk_gib = models.BigIntegerField(default=0)
    traits = ArrayField(models.CharField(max_length=255), default=list, blank=True)
    aggregate_uuids = ArrayField(models.CharField(max_length=64), default=list, blank=True)
    allowed_projects = ArrayField(models.CharField(max_length=64), default=list, blank=True)
    ordered_projects = ArrayField(
        models.CharField(max_length=64),
        null=True,
        blank=True,
        help_text="allowed projects as an operator ordered them; empty if the cloud says them",
    )
    ordered_overcommit = models.JSONField(
        null=True,
        blank=True,
        help_text="cpu, memory to the ratio that an operator ordered; empty if the cloud says it",
    )
    high_availability = models.BooleanField(
        default=True,
        db_default=True,
        help_text="whether its VMs are to start elsewhere when it dies",
    )
    provider_uuid = models.CharField(
        max_length=64, blank=True, help_text="root resource provider in Placement"
    )
    provider_inventories = models.JSONField(default=dict, blank=True)
    provider_traits = ArrayField(models.CharField(max_length=255), default=list, blank=True)
    nested_providers = models.JSONField(default=list, blank=True)
    building_block = models.CharField(
        max_length=255, blank=True, db_default="", help_text="failure domain, rack"
    )
    custom_traits = ArrayField(
        models.CharField(max_length=255), default=list, db_default=[], blank=True
    )
    conditions = models.JSONField(
        default=dict,
        db_default={},
        blank=True,
        help_text="condition type to status, as the host reports them",
    )
    condition_reasons = models.JSONField(
        default=dict,
        db_default={},
        blank=True,
        help_text="condition type to its reason and message, as far as the host tells them",
    )
    domain_capabilities = models.JSONField(
        default=dict,
        db_default={},
        blank=True,
        help_text="features, CPU modes and devices for live migration",
    )
    reported_instances = models.JSONField(
        null=True,
        blank=True,
        help_text="VMs as the host reports them: id, name, active; empty if it reports none at all",
    )
    is_self_described = models.BooleanField(
        default=False,
        db_default=False,
        help_text="an object of its own says what the host is, not the cloud's lists",
    )
    slots_held_off = models.TextField(
        blank=True,
        default="",
        db_default="",
        help_text="why it gets no new slots though VMs go on, as of its agent; empty if it does",
    )
    reported_memory_bytes = models.BigIntegerField(
        null=True,
        blank=True,
        help_text="what VMs take, as the host reports it; empty if it does not",
    )
    reported_vcpus = models.BigIntegerField(null=True, blank=True)
    generation = models.BigIntegerField(default=1)

    class Meta:
        ordering = ("name",)
        indexes = [
            models.Index(fields=["zone", "name"], name="hosts_host_zone_name_idx"),
            parts_of_names("hosts_host_parts_idx"),
            models.Index(
                Func(
                    F("provider_uuid"),
                    F("openstack_id"),
                    function="hosts_provider_uuid",
                    output_field=models.UUIDField(),
                ),
                name="hosts_host_provider_idx",
            ),
        ]
        constraints = [
            models.CheckConstraint(
                condition=Q(effective_vcpus__gte=0)
                & Q(effective_memory_bytes__gte=0)
                & Q(effective_disk_gib__gte=0),
                name="hosts_host_effective_not_negative",
            ),
            models.CheckConstraint(
                condition=Q(state__in=HostState.values), name="hosts_host_state_known"
            ),
            models.CheckConstraint(
                condition=Q(reported_memory_bytes__isnull=True, reported_vcpus__isnull=True)
                | Q(reported_memory_bytes__gte=0, reported_vcpus__gte=0),
                name="hosts_host_reported_together",
            ),
            models.CheckConstraint(
                condition=Q(status__in=HostStatus.values), name="hosts_host_status_known"
            ),
        ]

    def __str__(self) -> str:
        return self.name

    @property
    def is_ready(self) -> bool:
        """Whether new VMs and slots may be placed here (spec scheduling, 7.2)."""
        return (
            self.state == HostState.UP
            and self.fenced_since is None
            and self.status == HostStatus.ENABLED
            and self.maintenance in {Maintenance.NONE, Maintenance.HA}
            and not hindering_conditions(self.conditions)
        )


class PlannedHostEdit(models.TextChoices):
    """What is planned for hosts."""

    ADD = "add", "hosts will be added"
    DRAIN = "drain", "host will be drained"


class PlannedHostChange(models.Model):
    """Hosts that will come or go, as operators know it; nothing is moved because of it.

    Refused commitments learn from it when they would fit. A planned host is like an existing one:
    ``host`` is its model, ``host_count`` how many come. For a drain ``host`` is the one that goes.
    Writers: operators, through :mod:`hosts.services.planned_changes`.
    """

    edit = models.CharField(max_length=8, choices=PlannedHostEdit.choices)
    at = models.DateTimeField(db_index=True, help_text="when it happens, UTC")
    host = models.ForeignKey(
        Host,
        on_delete=models.CASCADE,
        related_name="planned_changes",
        help_text="the host that is drained, or the host that the new ones are like",
    )
    host_count = models.PositiveIntegerField(default=1, help_text="new hosts; 1 for a drain")
    note = models.TextField(blank=True)
    created_at = models.DateTimeField(db_default=Now(), editable=False)
    updated_at = TouchedField()

    class Meta:
        verbose_name = "planned host change"
        ordering = ("at", "id")
        constraints = [
            models.CheckConstraint(
                condition=Q(edit__in=PlannedHostEdit.values), name="hosts_plannedhostchange_known"
            ),
            models.CheckConstraint(
                condition=Q(edit=PlannedHostEdit.ADD, host_count__range=(1, 1000))
                | Q(edit=PlannedHostEdit.DRAIN, host_count=1),
                name="hosts_plannedhostchange_count",
                violation_error_message="host count: 1 to 1000 for new hosts, 1 for a drain",
            ),
            models.UniqueConstraint(
                fields=["host"],
                condition=Q(edit=PlannedHostEdit.DRAIN),
                name="hosts_plannedhostchange_one_drain",
                violation_error_message="this host has a planned drain already",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.edit} {self.host}"


class Image(TrackedModel):
    """A Glance image, as far as it tells the operating system of VMs."""

    openstack_id = models.CharField(max_length=64, unique=True)
    name = models.CharField(max_length=255, blank=True)
    os_type = models.CharField(max_length=255, default="unknown")
    properties = models.JSONField(default=dict, blank=True)

    class Meta:
        ordering = ("name", "id")
        indexes = [parts_of_names("hosts_image_parts_idx")]

    def __str__(self) -> str:
        return self.name or self.openstack_id


class ServerGroup(TrackedModel):
    """A Nova server group. Writers: import, sync."""

    openstack_id = models.CharField(max_length=64, unique=True)
    name = models.CharField(max_length=255, blank=True)
    policy = models.CharField(max_length=64, blank=True)
    rules = models.JSONField(default=dict, blank=True)
    members = ArrayField(models.CharField(max_length=64), default=list, blank=True)
    project_id = models.CharField(max_length=64, blank=True)

    class Meta:
        ordering = ("name", "id")
        indexes = [
            GinIndex(fields=["members"], name="hosts_servergroup_members"),
            parts_of_names("hosts_servergroup_parts_idx"),
        ]

    def __str__(self) -> str:
        return self.name or self.openstack_id


class FeedPass(models.Model):
    """How far the feed is with one kind of lists of the cloud: one row a kind.

    ``listed_at`` is when the last completed pass began to read: what the cloud said until then is
    in the rows. Writer: :mod:`hosts.feed.state`.
    """

    kind = models.CharField(max_length=32, unique=True)
    passes = models.BigIntegerField(default=0, help_text="passes that were completed, ever")
    began_at = models.DateTimeField(null=True, blank=True)
    finished_at = models.DateTimeField(null=True, blank=True, help_text="last completed pass")
    listed_at = models.DateTimeField(
        null=True, blank=True, help_text="when the last completed pass began to read"
    )
    counts = models.JSONField(default=dict, blank=True)
    refusal = models.TextField(blank=True, help_text="what the last completed pass did not believe")
    error = models.TextField(blank=True, help_text="why the last pass was not completed")
    failures = models.IntegerField(default=0, help_text="passes in a row that were not completed")

    class Meta:
        verbose_name = "pass of the feed"
        verbose_name_plural = "passes of the feed"
        ordering = ("kind",)

    def __str__(self) -> str:
        return self.kind


class FeedHint(models.Model):
    """Something that may have changed in the cloud: the feed looks, and forgets the hint.

    Writer: :mod:`hosts.feed.hints`.
    """

    kind = models.CharField(max_length=32)
    object_id = models.CharField(max_length=64, blank=True)
    seen_at = models.DateTimeField()

    class Meta:
        verbose_name = "hint of the feed"
        verbose_name_plural = "hints of the feed"
        ordering = ("id",)
        constraints = [
            models.UniqueConstraint(fields=["kind", "object_id"], name="hosts_feedhint_once")
        ]

    def __str__(self) -> str:
        return f"{self.kind} {self.object_id}".strip()


class ListedProvider(models.Model):
    """A resource provider as Placement told it last, to be asked again when its generation changed.

    Writer: :mod:`hosts.feed.providers`.
    """

    uuid = models.CharField(max_length=64, unique=True)
    generation = models.BigIntegerField()
    body = models.JSONField()
    read_at = models.DateTimeField()

    class Meta:
        verbose_name = "listed provider"
        ordering = ("uuid",)

    def __str__(self) -> str:
        return self.uuid


class DeletedVM(models.Model):
    """A VM that Nova said is deleted, for as long as an older list may still show it.

    ``seen_at`` is when the reading began that showed it so. Writers: import, sync.
    """

    openstack_id = models.CharField(max_length=64, unique=True)
    seen_at = models.DateTimeField(db_index=True)

    class Meta:
        verbose_name = "deleted VM"
        ordering = ("id",)

    def __str__(self) -> str:
        return self.openstack_id


class ServerMigration(models.Model):
    """A VM on its way to another host, as Nova lists it: live, cold, resized or evacuated.

    Hosts are by the name of the hypervisor, else of its compute service. Sizes are what the VM
    takes on each, NULL while nobody knows. ``over_at`` is set when Nova no longer has it in
    progress; the row goes once the VM list is as new. Writers: :mod:`hosts.region.moving`, and
    whoever holds the room of such VMs.
    """

    uuid = models.CharField(max_length=64, unique=True)
    vm_uuid = models.CharField(max_length=64, db_index=True)
    migration_type = models.CharField(max_length=32)
    status = models.CharField(max_length=64)
    source_name = models.CharField(max_length=255, blank=True)
    target_name = models.CharField(max_length=255, blank=True)
    source_memory_bytes = models.BigIntegerField(null=True, blank=True)
    source_vcpus = models.BigIntegerField(null=True, blank=True)
    target_memory_bytes = models.BigIntegerField(null=True, blank=True)
    target_vcpus = models.BigIntegerField(null=True, blank=True)
    over_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        verbose_name = "migration of a VM"
        verbose_name_plural = "migrations of VMs"
        ordering = ("uuid",)

    def __str__(self) -> str:
        return self.uuid


class Instance(FollowedModel):
    """A VM (Nova server) with its size and place. Writers: import, sync.

    ``host`` is empty for a VM that no known host carries (shelved, errored, unknown host); such a
    VM consumes nothing. ``host_name`` keeps what Nova said.
    """

    openstack_id = models.CharField(max_length=64, unique=True)
    name = models.CharField(max_length=255, blank=True)
    project_id = models.CharField(max_length=64, db_index=True)
    user_id = models.CharField(max_length=64, blank=True)
    flavor_name = models.CharField(max_length=255, db_index=True)
    vcpus = models.PositiveIntegerField()
    memory_bytes = models.BigIntegerField()
    disk_gib = models.PositiveIntegerField(default=0)
    flavor_extra_specs = models.JSONField(default=dict, blank=True)
    host = models.ForeignKey(
        Host, null=True, blank=True, on_delete=models.PROTECT, related_name="instances"
    )
    host_name = models.CharField(max_length=255, blank=True)
    zone = models.CharField(max_length=255, blank=True)
    status = models.CharField(max_length=32, db_index=True)
    vm_state = models.CharField(max_length=32, blank=True)
    task_state = models.CharField(max_length=64, blank=True)
    power_state = models.IntegerField(default=0)
    os_type = models.CharField(max_length=255, default="unknown")
    image_id = models.CharField(max_length=64, blank=True)
    launched_at = models.DateTimeField(null=True, blank=True)
    nova_created_at = models.DateTimeField(null=True, blank=True)
    nova_updated_at = models.DateTimeField(null=True, blank=True)
    arrived_at = models.DateTimeField(
        null=True,
        blank=True,
        editable=False,
        help_text="When it came to the host it is on; kept by the database.",
    )
    metadata = models.JSONField(default=dict, blank=True)

    class Meta:
        verbose_name = "VM"
        verbose_name_plural = "VMs"
        ordering = ("name", "id")
        indexes = [
            models.Index(fields=["project_id", "zone"], name="hosts_instance_project_idx"),
            models.Index(
                fields=["name"], opclasses=["varchar_pattern_ops"], name="hosts_instance_name_idx"
            ),
            parts_of_names("hosts_instance_parts_idx"),
        ]
        constraints = [
            models.CheckConstraint(
                condition=Q(memory_bytes__gte=0), name="hosts_instance_memory_not_negative"
            )
        ]

    def __str__(self) -> str:
        return self.name or self.openstack_id


from hosts.agents import models as agent_models  # noqa: E402, F401 - registers its models with Django
from hosts.agents import (  # noqa: E402 - register their models with Django
    resource_models,  # noqa: F401 - as above
    workload_models,  # noqa: F401 - as above
)
