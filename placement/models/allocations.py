"""Consumers and what they hold."""

from __future__ import annotations

from django.db import models
from django.db.models import Q
from django.db.models.functions import Now


class Consumer(models.Model):
    """Whoever holds allocations: a VM, a migration, one of our reservations.

    Invariants: it has at least one allocation; ``generation`` grows by one with every write of its
    allocations. ``type`` is empty for clients that name none. Writers: allocation writes.
    """

    uuid = models.UUIDField(unique=True)
    generation = models.IntegerField(db_default=0)
    # Names of projects and users stay for ever (placement_triggers): the check of a foreign key
    # would lock the project's row with each of its claims. Nobody looks for the consumers of a user
    # alone, and most name no type: a claim writes neither index.
    project = models.ForeignKey(
        "placement.ConsumerProject",
        on_delete=models.PROTECT,
        db_index=False,
        db_constraint=False,
    )
    user = models.ForeignKey(
        "placement.ConsumerUser", on_delete=models.PROTECT, db_index=False, db_constraint=False
    )
    type = models.ForeignKey(
        "placement.ConsumerType", on_delete=models.PROTECT, null=True, blank=True, db_index=False
    )
    created_at = models.DateTimeField(db_default=Now())
    updated_at = models.DateTimeField(db_default=Now())

    class Meta:
        db_table = "placement_consumer"
        ordering = ("id",)
        indexes = [
            models.Index(fields=["project", "user"], name="placement_consumer_owner_idx"),
            models.Index(
                fields=["type"],
                condition=Q(type__isnull=False),
                name="placement_consumer_type_idx",
            ),
        ]

    def __str__(self) -> str:
        return str(self.uuid)


class Allocation(models.Model):
    """A consumer holds an amount of a class of a provider.

    Invariants: one row per consumer, provider and class; the provider has inventory of the class (a
    composite foreign key to the inventory, checked at commit). Writers: allocation writes.
    """

    pk = models.CompositePrimaryKey("consumer_id", "provider_id", "resource_class_id")
    consumer = models.ForeignKey(
        Consumer, on_delete=models.PROTECT, related_name="allocations", db_index=False
    )
    # The foreign key to the inventory, added by migration, includes the next two.
    provider = models.ForeignKey(
        "placement.ResourceProvider",
        on_delete=models.PROTECT,
        related_name="allocations",
        db_index=False,
        db_constraint=False,
    )
    resource_class = models.ForeignKey(
        "placement.ResourceClass",
        on_delete=models.PROTECT,
        related_name="allocations",
        db_index=False,
        db_constraint=False,
    )
    used = models.BigIntegerField()
    created_at = models.DateTimeField(db_default=Now())

    class Meta:
        db_table = "placement_allocation"
        indexes = [
            models.Index(
                fields=["provider", "resource_class"], name="placement_allocation_held_idx"
            )
        ]
        constraints = [
            models.CheckConstraint(condition=Q(used__gte=1), name="placement_allocation_used")
        ]

    def __str__(self) -> str:
        return f"consumer {self.consumer_id} on provider {self.provider_id}: {self.used}"


class ProjectUsage(models.Model):
    """A part of what the consumers of a project, user and type hold; sums of rows are the truth.

    Invariants: the rows of an owner and a class add up to the allocations of its consumers of that
    class, those without a class to the number of consumers that hold something. Writers: every
    write of allocations appends rows, so that writers do not wait for each other; a task replaces
    many rows by their sums.
    """

    project = models.ForeignKey(
        "placement.ConsumerProject",
        on_delete=models.PROTECT,
        related_name="+",
        db_index=False,
        db_constraint=False,
    )
    user = models.ForeignKey(
        "placement.ConsumerUser",
        on_delete=models.PROTECT,
        related_name="+",
        db_index=False,
        db_constraint=False,
    )
    type = models.ForeignKey(
        "placement.ConsumerType",
        on_delete=models.PROTECT,
        related_name="+",
        null=True,
        db_index=False,
        db_constraint=False,
    )
    resource_class = models.ForeignKey(
        "placement.ResourceClass",
        on_delete=models.PROTECT,
        related_name="+",
        null=True,
        db_index=False,
        db_constraint=False,
    )
    used = models.BigIntegerField()

    class Meta:
        db_table = "placement_project_usage"
        indexes = [models.Index(fields=["project", "user"], name="placement_project_usage_idx")]

    def __str__(self) -> str:
        return f"project {self.project_id}: {self.used}"
