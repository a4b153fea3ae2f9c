"""Resource providers, their inventories, and what is tied to them."""

from __future__ import annotations

from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import F, Q
from django.db.models.functions import Now


class Origin(models.TextChoices):
    """Who made a provider (spec placement, 8.3)."""

    HOST = "host", "host of the region"
    API = "api", "client of the API"
    UPSTREAM = "upstream", "copy of another Placement"


class InventorySource(models.TextChoices):
    """Who says what a host provider has (spec placement, 8.4)."""

    API = "api", "nova-compute, through the API"
    HOST = "host", "the region's hosts"


class ResourceProvider(models.Model):
    """Something that has resources: a host, a NUMA cell, a disk pool.

    Invariants: the chain of parents ends at ``root``; ``generation`` grows by one with every write
    that the specification lists (5.2); all of a tree are copies of another Placement (``origin``)
    or none is. Copies answer nobody, and no service locks them but those that copy. Writers:
    ``services``, which lock the row first.

    Attributes:
        host_traits: Traits that the host had when it was last looked at. What it gains or loses is
            passed on; what clients write is left alone.
        host_aggregates: Likewise its aggregates.
        requested_traits: Traits that clients gave the host at last; None: they never did.
        requested_aggregates: Likewise aggregates, UUID -> name, which may be empty.
        is_retiring: The host is gone; the provider goes with its last allocation.
    """

    uuid = models.UUIDField(unique=True)
    name = models.CharField(max_length=200, unique=True)
    generation = models.IntegerField(db_default=0)
    parent = models.ForeignKey(
        "self", on_delete=models.PROTECT, null=True, blank=True, related_name="children"
    )
    root = models.ForeignKey("self", on_delete=models.PROTECT, related_name="members")
    origin = models.CharField(max_length=16, choices=Origin, db_default=Origin.API)
    inventory_source = models.CharField(
        max_length=16, choices=InventorySource, db_default=InventorySource.API
    )
    zone = models.CharField(max_length=255, blank=True, db_default="")
    is_retiring = models.BooleanField(db_default=False)
    host_traits = ArrayField(
        models.CharField(max_length=255), db_default=[], default=list, blank=True
    )
    host_aggregates = ArrayField(models.UUIDField(), db_default=[], default=list, blank=True)
    requested_traits = ArrayField(models.CharField(max_length=255), null=True, blank=True)
    requested_aggregates = models.JSONField(null=True, blank=True)
    created_at = models.DateTimeField(db_default=Now())
    updated_at = models.DateTimeField(db_default=Now())

    class Meta:
        db_table = "placement_provider"
        ordering = ("id",)
        constraints = [
            models.CheckConstraint(
                condition=Q(parent__isnull=True) | ~Q(parent=F("pk")),
                name="placement_provider_not_own_parent",
            ),
            models.CheckConstraint(
                condition=Q(generation__gte=0), name="placement_provider_generation"
            ),
        ]

    def __str__(self) -> str:
        return self.name


class Inventory(models.Model):
    """How much of a class a provider has, and how much of it is allocated.

    Invariants: ``used`` is the sum of the allocations of this provider and class; only allocation
    writes change it. Writers: ``services``, under the provider's row lock.
    """

    provider = models.ForeignKey(
        ResourceProvider, on_delete=models.PROTECT, related_name="inventories", db_index=False
    )
    resource_class = models.ForeignKey(
        "placement.ResourceClass", on_delete=models.PROTECT, related_name="inventories"
    )
    total = models.IntegerField()
    reserved = models.IntegerField(db_default=0)
    min_unit = models.IntegerField(db_default=1)
    max_unit = models.IntegerField(db_default=2147483647)
    step_size = models.IntegerField(db_default=1)
    allocation_ratio = models.FloatField(db_default=1.0)
    used = models.BigIntegerField(db_default=0)
    created_at = models.DateTimeField(db_default=Now())
    updated_at = models.DateTimeField(db_default=Now())

    class Meta:
        db_table = "placement_inventory"
        verbose_name_plural = "inventories"
        ordering = ("provider", "resource_class")
        constraints = [
            models.UniqueConstraint(
                fields=["provider", "resource_class"], name="placement_inventory_class"
            ),
            models.CheckConstraint(condition=Q(used__gte=0), name="placement_inventory_used"),
            models.CheckConstraint(
                condition=Q(total__gte=1, reserved__gte=0), name="placement_inventory_amounts"
            ),
            models.CheckConstraint(
                condition=Q(min_unit__gte=1, max_unit__gte=1, step_size__gte=1),
                name="placement_inventory_units",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.resource_class_id} of provider {self.provider_id}"


class ProviderTrait(models.Model):
    """A provider has a trait. Writers: ``services``, under the provider's row lock."""

    pk = models.CompositePrimaryKey("provider_id", "trait_id")
    provider = models.ForeignKey(
        ResourceProvider, on_delete=models.CASCADE, related_name="trait_links", db_index=False
    )
    trait = models.ForeignKey(
        "placement.Trait", on_delete=models.PROTECT, related_name="provider_links"
    )

    class Meta:
        db_table = "placement_provider_trait"

    def __str__(self) -> str:
        return f"trait {self.trait_id} of provider {self.provider_id}"


class ProviderAggregate(models.Model):
    """A provider is in an aggregate. Writers: ``services``, under the provider's row lock."""

    pk = models.CompositePrimaryKey("provider_id", "aggregate_id")
    provider = models.ForeignKey(
        ResourceProvider, on_delete=models.CASCADE, related_name="aggregate_links", db_index=False
    )
    aggregate = models.ForeignKey(
        "placement.Aggregate", on_delete=models.PROTECT, related_name="provider_links"
    )

    class Meta:
        db_table = "placement_provider_aggregate"

    def __str__(self) -> str:
        return f"aggregate {self.aggregate_id} of provider {self.provider_id}"
