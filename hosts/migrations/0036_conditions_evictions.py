"""Since when conditions of hosts stand as they do, and hosts that are to become empty."""

from __future__ import annotations

from typing import ClassVar

import django.db.models.deletion
from django.db import migrations, models
from django.db.models import Q
from django.db.models.functions import Now


class Migration(migrations.Migration):
    """Two tables; triggers and current text of functions stand in ``hosts/sql``."""

    dependencies: ClassVar = [("hosts", "0035_changed_workloads")]

    operations: ClassVar = [
        migrations.CreateModel(
            name="HostCondition",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                (
                    "host",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="kept_conditions",
                        to="hosts.host",
                    ),
                ),
                ("type", models.CharField(max_length=255)),
                ("status", models.CharField(help_text="True, False or Unknown", max_length=16)),
                ("reason", models.TextField(blank=True, db_default="", default="")),
                ("message", models.TextField(blank=True, db_default="", default="")),
                ("last_transition_at", models.DateTimeField(blank=True, null=True)),
            ],
            options={
                "ordering": ("host_id", "type"),
                "constraints": [
                    models.UniqueConstraint(fields=("host", "type"), name="hosts_condition_once")
                ],
            },
        ),
        migrations.CreateModel(
            name="Eviction",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                (
                    "host",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="evictions",
                        to="hosts.host",
                    ),
                ),
                ("reason", models.TextField()),
                ("opened_by", models.CharField(max_length=255)),
                ("opened_at", models.DateTimeField(db_default=Now(), editable=False)),
                (
                    "looked_at",
                    models.DateTimeField(
                        blank=True, help_text="when VMs were counted last", null=True
                    ),
                ),
                ("outstanding", models.JSONField(blank=True, default=list)),
                ("outstanding_vms", models.IntegerField(default=0)),
                ("outstanding_memory_bytes", models.BigIntegerField(default=0)),
                ("closed_at", models.DateTimeField(blank=True, null=True)),
                (
                    "end",
                    models.CharField(
                        blank=True,
                        choices=[
                            ("succeeded", "no VM is left"),
                            ("cancelled", "the host is in service again"),
                        ],
                        default="",
                        max_length=16,
                    ),
                ),
            ],
            options={
                "ordering": ("-id",),
                "indexes": [models.Index(fields=["host", "-id"], name="hosts_eviction_host_idx")],
                "constraints": [
                    models.UniqueConstraint(
                        condition=Q(closed_at__isnull=True),
                        fields=("host",),
                        name="hosts_eviction_one_open",
                    ),
                    models.CheckConstraint(
                        condition=Q(closed_at__isnull=True, end="")
                        | Q(closed_at__isnull=False, end__in=["succeeded", "cancelled"]),
                        name="hosts_eviction_ended_with_time",
                    ),
                    models.CheckConstraint(
                        condition=Q(outstanding_vms__gte=0, outstanding_memory_bytes__gte=0),
                        name="hosts_eviction_not_negative",
                    ),
                ],
            },
        ),
    ]
