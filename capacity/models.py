"""Flavor groups, the reservation ledger, host capacity rows, group capacity, quota."""

from __future__ import annotations

import uuid

from django.core.validators import MaxValueValidator
from django.db import models
from django.db.models import F, Q

from hosts.models import Flavor, Host
from journal.models import TrackedModel

MAX_RAM_UNIT_GIB = 1 << 33


class ReservationKind(models.TextChoices):
    """What capacity is held for."""

    COMMITTED = "committed", "committed"
    FAILOVER = "failover", "failover"
    IN_FLIGHT = "in_flight", "in flight"


class AllocationState(models.TextChoices):
    """How sure we are that a VM sits in a reservation."""

    EXPECTED = "expected", "expected"
    CONFIRMED = "confirmed", "confirmed"


class ReadyReason(models.TextChoices):
    """Reasons of a reservation's Ready condition (spec commitments, 2.7)."""

    ACTIVE = "ReservationActive", "active"
    PRE_ALLOCATED = "PreAllocated", "pre-allocated"
    NO_HOSTS_FOUND = "NoHostsFound", "no hosts found"
    REVOKED = "PlacementRevoked", "placement revoked"
    MISSING_FLAVOR = "MissingResourceName", "missing flavor name"


class FlavorGroup(TrackedModel):
    """Flavors that share hardware and are committed together (spec commitments, 4).

    Written by ``capacity.services.flavor_groups`` alone. A group that disappears while
    commitments refer to it is marked retired and keeps its last definition.
    """

    name = models.CharField(max_length=255, unique=True)
    smallest_flavor = models.ForeignKey(Flavor, on_delete=models.PROTECT, related_name="+")
    largest_flavor = models.ForeignKey(Flavor, on_delete=models.PROTECT, related_name="+")
    ram_core_ratio_mib = models.BigIntegerField(null=True, blank=True)
    ram_core_ratio_min_mib = models.BigIntegerField(null=True, blank=True)
    ram_core_ratio_max_mib = models.BigIntegerField(null=True, blank=True)
    is_retired = models.BooleanField(default=False)
    flavors: models.ManyToManyField[Flavor, FlavorGroupMember] = models.ManyToManyField(
        Flavor, through="FlavorGroupMember", related_name="flavor_groups"
    )

    class Meta:
        ordering = ("name",)
        constraints = [
            models.CheckConstraint(
                condition=Q(
                    ram_core_ratio_min_mib__isnull=True, ram_core_ratio_max_mib__isnull=True
                )
                | Q(
                    ram_core_ratio_mib__isnull=True,
                    ram_core_ratio_min_mib__lt=F("ram_core_ratio_max_mib"),
                )
                | Q(
                    ram_core_ratio_mib=F("ram_core_ratio_min_mib"),
                    ram_core_ratio_min_mib=F("ram_core_ratio_max_mib"),
                ),
                name="capacity_flavorgroup_ratio_consistent",
            )
        ]

    def __str__(self) -> str:
        return self.name

    @property
    def has_fixed_ratio(self) -> bool:
        """Whether every flavor has the same memory per vCPU (spec commitments, 4.3)."""
        return self.ram_core_ratio_mib is not None


class FlavorGroupMember(models.Model):
    """A flavor's place in its group; a flavor is in at most one group."""

    group = models.ForeignKey(FlavorGroup, on_delete=models.CASCADE, related_name="members")
    flavor = models.OneToOneField(Flavor, on_delete=models.CASCADE, related_name="membership")
    position = models.PositiveIntegerField(help_text="0 is the largest flavor")

    class Meta:
        ordering = ("group", "position")
        constraints = [
            models.UniqueConstraint(
                fields=["group", "position"], name="capacity_flavorgroupmember_position_unique"
            )
        ]

    def __str__(self) -> str:
        return f"{self.group_id}/{self.position}"


class FlavorGroupRule(models.Model):
    """Groups flavors that lack the grouping extra spec, by a glob on their name."""

    group_name = models.CharField(max_length=255)
    flavor_pattern = models.CharField(max_length=255)
    position = models.PositiveIntegerField(default=0, help_text="lower is tried first")

    class Meta:
        ordering = ("position", "id")
        constraints = [
            models.UniqueConstraint(
                fields=["group_name", "flavor_pattern"], name="capacity_flavorgrouprule_unique"
            )
        ]

    def __str__(self) -> str:
        return f"{self.flavor_pattern} → {self.group_name}"


class FlavorGroupSettings(TrackedModel):
    """What a group's three resources do towards Limes (spec liquid, 6.4); ``*`` is the catch-all."""

    group_name = models.CharField(max_length=255, unique=True)
    ram_unit_gib = models.PositiveBigIntegerField(
        default=0,
        validators=[MaxValueValidator(MAX_RAM_UNIT_GIB)],
        help_text="GiB per declared unit of memory; 0 means 1",
    )
    ram_handles_commitments = models.BooleanField(default=False)
    ram_handles_dry_run = models.BooleanField(default=True)
    ram_has_capacity = models.BooleanField(default=True)
    ram_has_quota = models.BooleanField(default=False)
    cores_handles_commitments = models.BooleanField(default=False)
    cores_handles_dry_run = models.BooleanField(default=True)
    cores_has_capacity = models.BooleanField(default=True)
    cores_has_quota = models.BooleanField(default=False)
    instances_handles_commitments = models.BooleanField(default=False)
    instances_handles_dry_run = models.BooleanField(default=False)
    instances_has_capacity = models.BooleanField(default=True)
    instances_has_quota = models.BooleanField(default=False)

    class Meta:
        verbose_name_plural = "flavor group settings"
        ordering = ("group_name",)
        constraints = [
            models.CheckConstraint(
                condition=Q(ram_unit_gib__lte=MAX_RAM_UNIT_GIB),
                name="capacity_flavorgroupsettings_unit_bounded",
            )
        ]

    def __str__(self) -> str:
        return self.group_name


class FlavorGroupSnapshot(models.Model):
    """Whether flavor groups were extracted, and when their content last changed: one row."""

    singleton = models.BooleanField(default=True, unique=True, editable=False)
    is_ready = models.BooleanField(default=False)
    last_extracted_at = models.DateTimeField(null=True, blank=True)
    last_content_change_at = models.DateTimeField(null=True, blank=True)
    content_hash = models.CharField(max_length=64, blank=True)

    class Meta:
        constraints = [
            models.CheckConstraint(
                condition=Q(singleton=True), name="capacity_flavorgroupsnapshot_singleton"
            )
        ]

    def __str__(self) -> str:
        return "ready" if self.is_ready else "not ready"


class HostCapacity(TrackedModel):
    """The truth about a host's room: what it has, what VMs take, what each kind of hold takes.

    ``committed_*``, ``failover_*`` and ``in_flight_*`` are the sums of ``Reservation.blocked_*`` of
    the rows whose target or confirmed host this is. A block is taken by one conditional update
    (``effective - allocated - blocked >= asked``), never by read-then-write. ``effective_*`` and
    ``allocated_*`` follow ``hosts`` and may leave a host over-subscribed; taking a block may not.
    Writers: ``capacity.services.ledger`` alone.
    """

    host = models.OneToOneField(Host, on_delete=models.CASCADE, related_name="room")
    zone = models.CharField(max_length=255, blank=True, db_index=True)
    effective_memory_bytes = models.BigIntegerField(default=0)
    effective_vcpus = models.BigIntegerField(default=0)
    allocated_memory_bytes = models.BigIntegerField(default=0)
    allocated_vcpus = models.BigIntegerField(default=0)
    committed_memory_bytes = models.BigIntegerField(default=0)
    committed_vcpus = models.BigIntegerField(default=0)
    failover_memory_bytes = models.BigIntegerField(default=0)
    failover_vcpus = models.BigIntegerField(default=0)
    in_flight_memory_bytes = models.BigIntegerField(default=0)
    in_flight_vcpus = models.BigIntegerField(default=0)

    class Meta:
        verbose_name_plural = "host capacity"
        ordering = ("host__name",)
        constraints = [
            models.CheckConstraint(
                condition=Q(committed_memory_bytes__gte=0)
                & Q(committed_vcpus__gte=0)
                & Q(failover_memory_bytes__gte=0)
                & Q(failover_vcpus__gte=0)
                & Q(in_flight_memory_bytes__gte=0)
                & Q(in_flight_vcpus__gte=0)
                & Q(allocated_memory_bytes__gte=0)
                & Q(allocated_vcpus__gte=0),
                name="capacity_hostcapacity_not_negative",
            )
        ]

    def __str__(self) -> str:
        return str(self.host_id)


class Reservation(TrackedModel):
    """Capacity held on one host; a slot is a committed one (spec commitments, 2.2).

    Invariants: a slot belongs to a commitment and has a slot index unique in it; ``blocked_*`` is
    what the reservation takes from its hosts now and is counted in their ``HostCapacity``; a
    reservation without a target host blocks nothing. Writers: ``capacity.services.ledger`` alone.
    """

    uuid = models.UUIDField(default=uuid.uuid4, unique=True, editable=False)
    kind = models.CharField(max_length=16, choices=ReservationKind.choices)
    scheduling_domain = models.CharField(max_length=16, default="nova")
    zone = models.CharField(max_length=255, blank=True, db_index=True)
    flavor_group_name = models.CharField(max_length=255, blank=True)
    resource_name = models.CharField(
        max_length=255, blank=True, help_text="flavor the slot is placed as"
    )
    project_id = models.CharField(max_length=64, blank=True)
    domain_id = models.CharField(max_length=64, blank=True)
    memory_bytes = models.BigIntegerField()
    vcpus = models.BigIntegerField()
    blocked_memory_bytes = models.BigIntegerField(default=0)
    blocked_vcpus = models.BigIntegerField(default=0)
    target_host = models.ForeignKey(
        Host, null=True, blank=True, on_delete=models.PROTECT, related_name="targeted_reservations"
    )
    confirmed_host = models.ForeignKey(
        Host, null=True, blank=True, on_delete=models.PROTECT, related_name="reservations"
    )
    commitment = models.ForeignKey(
        "commitments.Commitment",
        null=True,
        blank=True,
        on_delete=models.PROTECT,
        related_name="slots",
    )
    slot_index = models.PositiveIntegerField(null=True, blank=True)
    start_time = models.DateTimeField(null=True, blank=True)
    end_time = models.DateTimeField(null=True, blank=True)
    creator = models.CharField(max_length=64, blank=True)
    creator_request_id = models.CharField(max_length=255, blank=True)
    parent_generation = models.BigIntegerField(default=0)
    observed_parent_generation = models.BigIntegerField(default=0)
    generation = models.BigIntegerField(default=1)
    is_ready = models.BooleanField(null=True, default=None)
    ready_reason = models.CharField(max_length=64, choices=ReadyReason.choices, blank=True)
    ready_message = models.TextField(blank=True)
    ready_changed_at = models.DateTimeField(null=True, blank=True)
    decision = models.JSONField(
        null=True, blank=True, help_text="why this host: candidates, removals, runners-up"
    )

    class Meta:
        ordering = ("commitment_id", "slot_index", "id")
        indexes = [
            models.Index(
                fields=["zone", "kind", "flavor_group_name"], name="capacity_reserv_zone_idx"
            ),
            models.Index(
                fields=["project_id", "flavor_group_name"], name="capacity_reserv_project_idx"
            ),
        ]
        constraints = [
            models.UniqueConstraint(
                fields=["commitment", "slot_index"], name="capacity_reservation_slot_unique"
            ),
            models.CheckConstraint(
                condition=Q(kind__in=ReservationKind.values), name="capacity_reservation_kind_known"
            ),
            models.CheckConstraint(
                condition=Q(memory_bytes__gte=0)
                & Q(vcpus__gte=0)
                & Q(blocked_memory_bytes__gte=0)
                & Q(blocked_vcpus__gte=0),
                name="capacity_reservation_not_negative",
            ),
            models.CheckConstraint(
                condition=(
                    Q(kind=ReservationKind.COMMITTED)
                    & Q(commitment__isnull=False)
                    & Q(slot_index__isnull=False)
                )
                | (~Q(kind=ReservationKind.COMMITTED) & Q(commitment__isnull=True)),
                name="capacity_reservation_slot_has_commitment",
            ),
            models.CheckConstraint(
                condition=Q(target_host__isnull=False)
                | Q(confirmed_host__isnull=False)
                | Q(blocked_memory_bytes=0, blocked_vcpus=0),
                name="capacity_reservation_block_has_host",
            ),
        ]

    def __str__(self) -> str:
        if self.slot_index is not None:
            return f"slot {self.slot_index}"
        return str(self.uuid)


class ReservationAllocation(TrackedModel):
    """A VM in a reservation: expected (placed there) or confirmed (seen there)."""

    reservation = models.ForeignKey(
        Reservation, on_delete=models.CASCADE, related_name="allocations"
    )
    vm_uuid = models.CharField(max_length=64, db_index=True)
    state = models.CharField(max_length=16, choices=AllocationState.choices)
    memory_bytes = models.BigIntegerField()
    vcpus = models.BigIntegerField()
    since = models.DateTimeField()
    confirmed_host = models.ForeignKey(
        Host, null=True, blank=True, on_delete=models.PROTECT, related_name="+"
    )
    confirmed_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ("reservation_id", "vm_uuid")
        constraints = [
            models.UniqueConstraint(
                fields=["reservation", "vm_uuid"], name="capacity_reservationallocation_vm_unique"
            ),
            models.CheckConstraint(
                condition=Q(
                    state=AllocationState.CONFIRMED,
                    confirmed_host__isnull=False,
                    confirmed_at__isnull=False,
                )
                | Q(state=AllocationState.EXPECTED, confirmed_host__isnull=True),
                name="capacity_reservationallocation_confirmed_has_host",
            ),
            models.CheckConstraint(
                condition=Q(memory_bytes__gte=0) & Q(vcpus__gte=0),
                name="capacity_reservationallocation_not_negative",
            ),
        ]

    def __str__(self) -> str:
        return self.vm_uuid


class GroupCapacity(TrackedModel):
    """Capacity of a flavor group in a zone, as reported to Limes (spec liquid, 13.1).

    ``total_vcpus`` empty means "not probed yet"; 0 means no capacity. Writers:
    ``capacity.services.group_capacity`` alone.
    """

    group_name = models.CharField(max_length=255)
    zone = models.CharField(max_length=255)
    smallest_flavor_name = models.CharField(max_length=255, blank=True)
    total_memory_bytes = models.BigIntegerField(default=0)
    total_vcpus = models.BigIntegerField(null=True, blank=True)
    free_memory_bytes = models.BigIntegerField(default=0)
    free_vcpus = models.BigIntegerField(default=0)
    exclusively_free_memory_bytes = models.BigIntegerField(default=0)
    exclusively_free_vcpus = models.BigIntegerField(default=0)
    exclusively_free_slots = models.BigIntegerField(default=0)
    running_instances = models.BigIntegerField(default=0)
    running_slots = models.BigIntegerField(null=True, blank=True)
    running_memory_bytes = models.BigIntegerField(default=0)
    running_vcpus = models.BigIntegerField(default=0)
    reserved_unused_memory_bytes = models.BigIntegerField(default=0)
    reserved_unused_vcpus = models.BigIntegerField(default=0)
    reserved_unused_slots = models.BigIntegerField(default=0)
    committed_slots = models.BigIntegerField(default=0)
    committed_memory_bytes = models.BigIntegerField(default=0)
    is_ready = models.BooleanField(default=False)
    ready_reason = models.CharField(max_length=64, blank=True)
    ready_message = models.TextField(blank=True)
    computed_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        verbose_name_plural = "group capacity"
        ordering = ("group_name", "zone")
        constraints = [
            models.UniqueConstraint(
                fields=["group_name", "zone"], name="capacity_groupcapacity_unique"
            )
        ]

    def __str__(self) -> str:
        return f"{self.group_name} in {self.zone}"


class FlavorCapacity(TrackedModel):
    """How many VMs of one flavor fit in a zone: on empty hosts, and now (spec liquid, 13.5)."""

    group_capacity = models.ForeignKey(
        GroupCapacity, on_delete=models.CASCADE, related_name="flavors"
    )
    flavor_name = models.CharField(max_length=255)
    total_vm_slots = models.BigIntegerField(default=0)
    total_hosts = models.BigIntegerField(default=0)
    placeable_vms = models.BigIntegerField(default=0)
    placeable_hosts = models.BigIntegerField(default=0)

    class Meta:
        verbose_name_plural = "flavor capacity"
        ordering = ("group_capacity", "flavor_name")
        constraints = [
            models.UniqueConstraint(
                fields=["group_capacity", "flavor_name"], name="capacity_flavorcapacity_unique"
            )
        ]

    def __str__(self) -> str:
        return self.flavor_name


class CapacityComputation(models.Model):
    """When the capacity rows of a zone were computed, and from which state of the database.

    The rows are fresh while every later write to what they depend on is visible in ``snapshot``
    and ``inputs`` is the same. Writers: ``capacity.services.group_capacity`` alone.
    """

    zone = models.CharField(max_length=255, unique=True)
    snapshot = models.TextField(help_text="pg_snapshot taken before the first read")
    snapshot_xmin = models.BigIntegerField(help_text="every older transaction is in the snapshot")
    inputs = models.TextField(help_text="fingerprint of flavor groups, settings and the algorithm")
    host_count = models.BigIntegerField(default=0)
    misplaced_vms = models.BigIntegerField(
        default=0, help_text="VMs whose own zone is not the zone of their host"
    )
    ungrouped_vms = models.BigIntegerField(
        default=0, help_text="VMs whose flavor is in no flavor group"
    )
    computed_at = models.DateTimeField()

    class Meta:
        ordering = ("zone",)
        constraints = [
            models.CheckConstraint(
                condition=~Q(zone=""), name="capacity_capacitycomputation_zone_not_empty"
            )
        ]

    def __str__(self) -> str:
        return self.zone


class ProjectQuota(TrackedModel):
    """A project's quota in a zone as Limes set it (spec commitments, 2.5).

    ``quota_by_resource`` maps LIQUID resource names to amounts: memory in GiB, others as counts.
    """

    project_id = models.CharField(max_length=64)
    project_name = models.CharField(max_length=255, blank=True)
    domain_id = models.CharField(max_length=64, blank=True)
    domain_name = models.CharField(max_length=255, blank=True)
    zone = models.CharField(max_length=255)
    quota_by_resource = models.JSONField(default=dict)
    generation = models.BigIntegerField(default=1)

    class Meta:
        ordering = ("project_id", "zone")
        constraints = [
            models.UniqueConstraint(
                fields=["project_id", "zone"], name="capacity_projectquota_unique"
            ),
            models.CheckConstraint(
                condition=~Q(zone=""), name="capacity_projectquota_zone_not_empty"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.project_id} in {self.zone}"
