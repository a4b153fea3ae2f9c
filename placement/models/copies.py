"""What another Placement says consumers hold of the copies of its providers."""

from __future__ import annotations

from django.db import models
from django.db.models import Q
from django.db.models.functions import Now


class CopiedAllocation(models.Model):
    """A consumer holds an amount of a class of a provider of another Placement.

    It stands apart from our own allocations: the other Placement numbers the consumer's
    generations, and one consumer may hold something on both sides. When a tree becomes ours, its
    rows become allocations.

    Invariants: the provider's origin is ``upstream``; the inventories of such a provider have as
    ``used`` what these rows add up to. Writers: whoever copies.

    Attributes:
        generation: The consumer's, as the other Placement numbers it.
        type_name: Empty for none.
    """

    consumer_uuid = models.UUIDField()
    provider = models.ForeignKey(
        "placement.ResourceProvider", on_delete=models.PROTECT, related_name="copied_allocations"
    )
    resource_class = models.ForeignKey(
        "placement.ResourceClass", on_delete=models.PROTECT, related_name="+", db_index=False
    )
    used = models.BigIntegerField()
    generation = models.IntegerField()
    project_id = models.CharField(max_length=255)
    user_id = models.CharField(max_length=255)
    type_name = models.CharField(max_length=255, blank=True, db_default="")
    copied_at = models.DateTimeField(db_default=Now())

    class Meta:
        db_table = "placement_copied_allocation"
        constraints = [
            models.UniqueConstraint(
                fields=["consumer_uuid", "provider", "resource_class"],
                name="placement_copied_allocation_once",
            ),
            models.CheckConstraint(condition=Q(used__gte=1), name="placement_copied_used"),
        ]

    def __str__(self) -> str:
        return f"consumer {self.consumer_uuid} on copy {self.provider_id}: {self.used}"
