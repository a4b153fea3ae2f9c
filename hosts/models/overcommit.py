"""What hosts with a trait may promise of what they have (spec hosts, C.5, D.2)."""

from __future__ import annotations

from decimal import Decimal

from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models
from django.db.models import Q
from django.db.models.functions import Now

from hosts.domain.overcommit import LEAST, MOST


def _ratio(words: str) -> models.DecimalField[Decimal | None, Decimal | None]:
    return models.DecimalField(
        max_digits=6,
        decimal_places=3,
        null=True,
        blank=True,
        validators=[MinValueValidator(LEAST), MaxValueValidator(MOST - Decimal("0.001"))],
        help_text=words,
    )


class OvercommitRule(models.Model):
    """Ratios of hosts that have a trait, or that have it not, of their lists of the cloud.

    Rules apply in order of their position, a later one over an earlier one for each resource. Of a
    host with an object of its own that says it; an order about one host goes before rules. Writers:
    operators, through :mod:`hosts.services.overcommit_rules`.
    """

    position = models.PositiveIntegerField(unique=True, help_text="later ones have the last word")
    has_trait = models.CharField(
        max_length=255, blank=True, default="", help_text="for hosts that have this trait"
    )
    hasnt_trait = models.CharField(
        max_length=255, blank=True, default="", help_text="for hosts that have it not"
    )
    cpu_ratio = _ratio("vCPUs promised for each; from 1")
    memory_ratio = _ratio("of memory; from 1")
    created_at = models.DateTimeField(db_default=Now(), editable=False)

    class Meta:
        ordering = ("position",)
        constraints = [
            models.CheckConstraint(
                condition=(Q(has_trait="") & ~Q(hasnt_trait=""))
                | (~Q(has_trait="") & Q(hasnt_trait="")),
                name="hosts_overcommitrule_one_trait",
                violation_error_message="name one trait: one that hosts have, or one that they "
                "have not",
            ),
            models.CheckConstraint(
                condition=(Q(cpu_ratio__isnull=True) | Q(cpu_ratio__gte=1))
                & (Q(memory_ratio__isnull=True) | Q(memory_ratio__gte=1)),
                name="hosts_overcommitrule_from_one",
            ),
        ]

    def __str__(self) -> str:
        trait = f"has {self.has_trait}" if self.has_trait else f"has not {self.hasnt_trait}"
        return f"{self.position}: {trait}"
