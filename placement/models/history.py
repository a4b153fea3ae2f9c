"""Who held what when (spec placement, 12)."""

from __future__ import annotations

from django.db import models
from django.db.models.functions import Now


class AllocationEvent(models.Model):
    """A consumer came to hold more or less of a class of a provider. Append-only.

    Names instead of references, so that an event outlives what it tells of. The table is split by
    week on ``created_at``; whole weeks are dropped when they are older than the settings say.
    Writers: the server-side functions that write allocations, in the same transaction.

    Attributes:
        amount: What is held from now on; 0 when it was given back.
        previous: What was held before.
    """

    created_at = models.DateTimeField(db_default=Now())
    consumer_uuid = models.UUIDField()
    provider_uuid = models.UUIDField()
    resource_class = models.CharField(max_length=255)
    amount = models.BigIntegerField()
    previous = models.BigIntegerField()
    actor = models.CharField(max_length=255)
    request_id = models.CharField(max_length=255)

    class Meta:
        db_table = "placement_allocation_event"
        ordering = ("-id",)
        indexes = [
            models.Index(fields=["consumer_uuid", "id"], name="placement_event_consumer_idx"),
            models.Index(fields=["provider_uuid", "id"], name="placement_event_provider_idx"),
        ]

    def __str__(self) -> str:
        return f"{self.consumer_uuid} {self.resource_class} {self.previous} -> {self.amount}"
