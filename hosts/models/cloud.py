"""What the lists of a cloud tell beside hosts and VMs."""

from __future__ import annotations

from datetime import UTC, datetime

from django.contrib.postgres.fields import ArrayField
from django.contrib.postgres.indexes import GinIndex
from django.db import models
from django.db.models import Q
from django.utils.dateparse import parse_datetime

from hosts.models.columns import parts_of_names
from journal.models import FollowedModel, TrackedModel


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
