"""How many failover reservations a VM needs (spec failover)."""

from __future__ import annotations

from django.db import models
from django.db.models import Q

from journal.models import TrackedModel


class FailoverPolicy(TrackedModel):
    """Number of failover reservations for VMs whose flavor name matches a glob.

    The first pattern that matches wins, in order of ``position``. Writers: import, admin.
    """

    flavor_pattern = models.CharField(max_length=255, unique=True)
    required_count = models.PositiveIntegerField()
    position = models.PositiveIntegerField(default=0, help_text="lower is tried first")

    class Meta:
        verbose_name_plural = "failover policies"
        ordering = ("position", "id")
        constraints = [
            models.CheckConstraint(
                condition=~Q(flavor_pattern=""), name="failover_failoverpolicy_pattern_not_empty"
            )
        ]

    def __str__(self) -> str:
        return f"{self.flavor_pattern}: {self.required_count}"
