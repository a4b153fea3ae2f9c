"""Hosts that are brought into service or taken out through Nova."""

from __future__ import annotations

from typing import ClassVar

import django.db.models.functions.datetime
from django.db import migrations, models

PHASES = ("initial", "testing", "handover", "aborting", "offboarding", "succeeded", "aborted")


class Migration(migrations.Migration):
    """A table of its own."""

    dependencies: ClassVar = [("hosts", "0039_evictions_by_nova")]

    operations: ClassVar = [
        migrations.CreateModel(
            name="HostLifecycle",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("host_name", models.CharField(db_index=True, max_length=255)),
                (
                    "kind",
                    models.CharField(
                        choices=[("in", "into service"), ("out", "out of service")], max_length=3
                    ),
                ),
                (
                    "phase",
                    models.CharField(choices=[(one, one) for one in PHASES], max_length=16),
                ),
                ("wanted", models.JSONField(blank=True, default=dict)),
                ("service_host", models.CharField(blank=True, default="", max_length=255)),
                ("provider_uuid", models.CharField(blank=True, default="", max_length=64)),
                ("reason", models.TextField()),
                ("opened_by", models.CharField(max_length=255)),
                (
                    "opened_at",
                    models.DateTimeField(
                        db_default=django.db.models.functions.datetime.Now(), editable=False
                    ),
                ),
                (
                    "looked_at",
                    models.DateTimeField(
                        blank=True, help_text="when it was looked at last", null=True
                    ),
                ),
                ("waits_for", models.TextField(blank=True, default="")),
                ("trouble", models.TextField(blank=True, default="")),
                ("tests", models.IntegerField(default=0)),
                ("tried_at", models.DateTimeField(blank=True, null=True)),
                ("closed_at", models.DateTimeField(blank=True, null=True)),
            ],
            options={
                "verbose_name": "life cycle",
                "ordering": ("-id",),
                "constraints": [
                    models.UniqueConstraint(
                        condition=models.Q(("closed_at__isnull", True)),
                        fields=("host_name",),
                        name="hosts_lifecycle_one_open",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            ("kind__in", ["in", "out"]), ("phase__in", list(PHASES))
                        ),
                        name="hosts_lifecycle_known",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(
                                ("closed_at__isnull", True),
                                ("phase__in", ["succeeded", "aborted"]),
                                _negated=True,
                            ),
                            models.Q(
                                ("closed_at__isnull", False),
                                models.Q(("phase__in", ["succeeded", "aborted"]), _negated=True),
                                _negated=True,
                            ),
                        ),
                        name="hosts_lifecycle_ended_with_time",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("tests__gte", 0)), name="hosts_lifecycle_tests"
                    ),
                ],
            },
        ),
    ]
