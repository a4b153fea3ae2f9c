"""Receivers of webhooks, and what was and is to be delivered to each."""

from __future__ import annotations

from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import Q
from django.db.models.functions import Now


class Endpoint(models.Model):
    """Who is told. Writers: :mod:`webhooks.services`; a delivery that is answered 410 disables it.

    Attributes:
        secret_name: File of ``HEADROOM_WEBHOOKS__SECRETS_DIR``: no secret is in the database.
    """

    name = models.SlugField(max_length=63, unique=True, help_text="lower case, digits and dashes")
    url = models.CharField(max_length=500)
    secret_name = models.SlugField(
        max_length=63, help_text="name of a file in the folder HEADROOM_WEBHOOKS__SECRETS_DIR"
    )
    kinds = ArrayField(
        models.CharField(max_length=64),
        default=list,
        blank=True,
        help_text="topics of the outbox, with commas in between; none is all of them",
    )
    is_paused = models.BooleanField("paused", default=False)
    disabled_at = models.DateTimeField(
        null=True, blank=True, editable=False, help_text="since it answered 410; saving enables it"
    )
    created_at = models.DateTimeField(db_default=Now(), editable=False)

    class Meta:
        ordering = ("name",)

    def __str__(self) -> str:
        return self.name


class Delivery(models.Model):
    """An entry of the outbox for one endpoint.

    Entries of one object go in their order: one waits for those before it that wait. ``attempts``
    tells the attempt that is under way from one that was given up for dead. Writers:
    :mod:`webhooks.following` makes them, :mod:`webhooks.delivering` notes what became of them.
    """

    class State(models.TextChoices):
        """What became of it."""

        WAITING = "waiting"
        DELIVERED = "delivered"
        DEAD = "dead"

    endpoint = models.ForeignKey(Endpoint, on_delete=models.CASCADE, related_name="deliveries")
    event_id = models.BigIntegerField(help_text="key of the outbox entry")
    topic = models.CharField(max_length=64)
    object_type = models.CharField(max_length=64)
    object_id = models.CharField(max_length=255)
    payload = models.JSONField()
    occurred_at = models.DateTimeField()
    state = models.CharField(
        max_length=16, choices=State.choices, default=State.WAITING, db_default=State.WAITING
    )
    attempts = models.PositiveIntegerField(default=0, db_default=0)
    due_at = models.DateTimeField(db_default=Now())
    answered_status = models.PositiveIntegerField(null=True, blank=True)
    error = models.TextField(blank=True, db_default="")
    finished_at = models.DateTimeField(null=True, blank=True)
    created_at = models.DateTimeField(db_default=Now())

    class Meta:
        verbose_name_plural = "deliveries"
        ordering = ("-id",)
        constraints = [
            models.UniqueConstraint(
                fields=["endpoint", "event_id"], name="webhooks_delivery_once_each"
            ),
            models.CheckConstraint(
                condition=Q(state__in=["waiting", "delivered", "dead"]),
                name="webhooks_delivery_state_known",
            ),
        ]
        indexes = [
            models.Index(
                fields=["endpoint", "object_type", "object_id", "event_id"],
                condition=Q(state="waiting"),
                name="webhooks_delivery_order_idx",
            ),
            models.Index(fields=["created_at"], name="webhooks_delivery_age_idx"),
        ]

    def __str__(self) -> str:
        return f"{self.topic} {self.object_id}"
