"""Versions of the host agent that reach hosts in waves (spec hosts, D.15)."""

from __future__ import annotations

from django.db import models
from django.db.models import Q
from django.db.models.functions import Now


class AgentRollout(models.Model):
    """A version that agents are to run, wave after wave; one is open at most.

    Writers: :mod:`hosts.agents.rollouts`.

    Attributes:
        waves: Building blocks that may have it, in the order in which they got it.
        failing: Hosts whose agents ran it and not well when it was looked at last.
    """

    version = models.CharField(max_length=64)
    reason = models.TextField()
    opened_by = models.CharField(max_length=255)
    opened_at = models.DateTimeField(db_default=Now(), editable=False)
    waves = models.JSONField(default=list, blank=True)
    wave_at = models.DateTimeField(
        db_default=Now(), help_text="when the last of the waves was opened"
    )
    failing = models.JSONField(default=list, blank=True)
    halted_at = models.DateTimeField(
        null=True, blank=True, help_text="since when no further host gets it"
    )
    is_open = models.BooleanField(default=True)
    closed_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        verbose_name = "rollout of agents"
        verbose_name_plural = "rollouts of agents"
        ordering = ("-id",)
        constraints = [
            models.UniqueConstraint(
                fields=["is_open"], condition=Q(is_open=True), name="hosts_rollout_one_open"
            ),
            models.CheckConstraint(
                condition=Q(is_open=True, closed_at__isnull=True)
                | Q(is_open=False, closed_at__isnull=False),
                name="hosts_rollout_ended_with_time",
            ),
        ]

    def __str__(self) -> str:
        return self.version
