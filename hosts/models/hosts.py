"""Hosts, and how many of them are planned to come or go."""

from __future__ import annotations

from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import F, Func, Q
from django.db.models.functions import Now

from hosts.domain.readiness import hindering_conditions
from hosts.models.columns import parts_of_names, ratio_field
from journal.models import FollowedModel, TouchedField

OS_VERSION_MAX = 64


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
    ruled_overcommit = models.JSONField(
        null=True,
        blank=True,
        help_text="cpu, memory to the ratio that overcommit rules give; empty if none does",
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
