"""What hosts with a trait may promise of what they have."""

from __future__ import annotations

from decimal import Decimal
from typing import ClassVar

import django.core.validators
from django.db import migrations, models
from django.db.models import Q
from django.db.models.functions import Now

_RANGE = [
    django.core.validators.MinValueValidator(Decimal(1)),
    django.core.validators.MaxValueValidator(Decimal("999.999")),
]


class Migration(migrations.Migration):
    """Rules, and what they make of each host."""

    dependencies: ClassVar = [("hosts", "0036_conditions_evictions")]

    operations: ClassVar = [
        migrations.CreateModel(
            name="OvercommitRule",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                (
                    "position",
                    models.PositiveIntegerField(
                        help_text="later ones have the last word", unique=True
                    ),
                ),
                (
                    "has_trait",
                    models.CharField(
                        blank=True,
                        default="",
                        help_text="for hosts that have this trait",
                        max_length=255,
                    ),
                ),
                (
                    "hasnt_trait",
                    models.CharField(
                        blank=True,
                        default="",
                        help_text="for hosts that have it not",
                        max_length=255,
                    ),
                ),
                (
                    "cpu_ratio",
                    models.DecimalField(
                        blank=True,
                        decimal_places=3,
                        help_text="vCPUs promised for each; from 1",
                        max_digits=6,
                        null=True,
                        validators=_RANGE,
                    ),
                ),
                (
                    "memory_ratio",
                    models.DecimalField(
                        blank=True,
                        decimal_places=3,
                        help_text="of memory; from 1",
                        max_digits=6,
                        null=True,
                        validators=_RANGE,
                    ),
                ),
                ("created_at", models.DateTimeField(db_default=Now(), editable=False)),
            ],
            options={
                "ordering": ("position",),
                "constraints": [
                    models.CheckConstraint(
                        condition=(Q(has_trait="") & ~Q(hasnt_trait=""))
                        | (~Q(has_trait="") & Q(hasnt_trait="")),
                        name="hosts_overcommitrule_one_trait",
                        violation_error_message="name one trait: one that hosts have, or one that "
                        "they have not",
                    ),
                    models.CheckConstraint(
                        condition=(Q(cpu_ratio__isnull=True) | Q(cpu_ratio__gte=1))
                        & (Q(memory_ratio__isnull=True) | Q(memory_ratio__gte=1)),
                        name="hosts_overcommitrule_from_one",
                    ),
                ],
            },
        ),
        migrations.AddField(
            model_name="host",
            name="ruled_overcommit",
            field=models.JSONField(
                blank=True,
                help_text="cpu, memory to the ratio that overcommit rules give; empty if none does",
                null=True,
            ),
        ),
    ]
