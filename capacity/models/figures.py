"""Capacity figures per group and zone, and quota per project (spec liquid, 10, 13)."""

from __future__ import annotations

from django.db import models
from django.db.models import Q

from capacity.resource_names import group_capacity_resource_name
from journal.models import FollowedModel, TrackedModel


class GroupCapacity(FollowedModel):
    """Capacity of a flavor group in a zone, as reported to Limes (spec liquid, 13.1).

    ``total_vcpus`` empty means "not probed yet"; 0 means no capacity. Writers:
    ``capacity.figures.group_capacity`` alone.
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

    @property
    def resource_name(self) -> str:
        """Name of the row in Kubernetes."""
        return group_capacity_resource_name(self.group_name, self.zone)


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
    and ``inputs`` is the same. Writers: ``capacity.figures.group_capacity`` alone.
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


class ProjectQuota(FollowedModel):
    """A project's quota in a zone as Limes set it, and what is used of it (spec commitments, 2.5).

    Quota and usage map LIQUID resource names to amounts: memory in GiB, others as counts. Limes
    writes the quota, which bumps ``generation``; the quota controller writes the usage, of the
    generation that it saw (spec liquid, 14).
    """

    project_id = models.CharField(max_length=64)
    project_name = models.CharField(max_length=255, blank=True)
    domain_id = models.CharField(max_length=64, blank=True)
    domain_name = models.CharField(max_length=255, blank=True)
    zone = models.CharField(max_length=255)
    quota_by_resource = models.JSONField(default=dict)
    generation = models.BigIntegerField(default=1)
    total_usage = models.JSONField(default=dict, db_default={})
    payg_usage = models.JSONField(default=dict, db_default={})
    total_usage_summary = models.TextField(blank=True, default="", db_default="")
    payg_usage_summary = models.TextField(blank=True, default="", db_default="")
    limes_usage_summary = models.TextField(blank=True, default="", db_default="")
    limes_quota_summary = models.TextField(blank=True, default="", db_default="")
    observed_generation = models.BigIntegerField(null=True, blank=True)
    last_reconcile_at = models.DateTimeField(null=True, blank=True)
    last_full_reconcile_at = models.DateTimeField(null=True, blank=True)
    counted_xmin = models.BigIntegerField(
        default=0,
        db_default=0,
        editable=False,
        help_text="oldest transaction that was not seen when the usage was counted",
    )

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
