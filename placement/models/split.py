"""Writes of allocations that concern another Placement as well as our tables."""

from __future__ import annotations

from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models.functions import Now


class SplitWrite(models.Model):
    """A write that is under way on both sides, or of which nobody knows what the other side did.

    It is there before the other side is asked, together with a hold in our tables that covers both
    outcomes; it goes with the hold, once the outcome is known. Writers: ``gateway.split``.

    Attributes:
        before: What each consumer held here, and its generation.
        after: What it is to hold here, and its generation then.
        theirs: What it held there, its generation, and what it is to hold there; only consumers
            that the request to the other side names.
        minor: Version of that request.
        body: The body of that request.
        ends_at: The other side has carried it out by then, or never will.
        error: Why the outcome is not known.
    """

    created_at = models.DateTimeField(db_default=Now())
    ends_at = models.DateTimeField()
    request_id = models.CharField(max_length=64)
    actor = models.CharField(max_length=255)
    minor = models.SmallIntegerField()
    before = models.JSONField()
    after = models.JSONField()
    theirs = models.JSONField()
    body = models.JSONField()
    error = models.TextField(blank=True, db_default="")
    consumers = ArrayField(models.UUIDField())

    class Meta:
        db_table = "placement_split_write"
        ordering = ("id",)

    def __str__(self) -> str:
        return f"write {self.pk} of both sides"


class SplitConsumer(models.Model):
    """A consumer of a split write: nobody else may write what it holds meanwhile.

    Writers: ``gateway.split``.
    """

    uuid = models.UUIDField(primary_key=True)
    write = models.ForeignKey(SplitWrite, on_delete=models.CASCADE, related_name="held_consumers")

    class Meta:
        db_table = "placement_split_consumer"

    def __str__(self) -> str:
        return str(self.uuid)
