"""Flavor groups, the rules that build them, and their settings (spec commitments, 4)."""

from __future__ import annotations

from django.core.validators import MaxValueValidator
from django.db import models
from django.db.models import F, Q

from hosts.models import Flavor, parts_of_names
from journal.models import TrackedModel

MAX_RAM_UNIT_GIB = 1 << 33


class FlavorGroup(TrackedModel):
    """Flavors that share hardware and are committed together (spec commitments, 4).

    Written by ``capacity.groups.refreshing`` alone. A group that disappears while
    commitments refer to it is marked retired and keeps its last definition.
    """

    name = models.CharField(max_length=255, unique=True)
    smallest_flavor = models.ForeignKey(Flavor, on_delete=models.PROTECT, related_name="+")
    largest_flavor = models.ForeignKey(Flavor, on_delete=models.PROTECT, related_name="+")
    ram_core_ratio_mib = models.BigIntegerField(null=True, blank=True)
    ram_core_ratio_min_mib = models.BigIntegerField(null=True, blank=True)
    ram_core_ratio_max_mib = models.BigIntegerField(null=True, blank=True)
    is_retired = models.BooleanField(default=False)
    flavor_sizes = models.CharField(
        max_length=64,
        blank=True,
        default="",
        db_default="",
        editable=False,
        help_text="digest of names, memory and vCPUs of its flavors; empty when not known yet",
    )
    resized_at = models.DateTimeField(
        null=True, blank=True, help_text="when its flavors last changed size, came or went"
    )
    flavors: models.ManyToManyField[Flavor, FlavorGroupMember] = models.ManyToManyField(
        Flavor, through="FlavorGroupMember", related_name="flavor_groups"
    )

    class Meta:
        ordering = ("name",)
        indexes = [parts_of_names("capacity_group_parts_idx")]
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
    """What a group's resources do towards Limes (spec liquid, 6.4); ``*`` is the catch-all."""

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
