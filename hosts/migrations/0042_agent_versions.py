"""What agents can, and versions that reach them in waves."""

from __future__ import annotations

from typing import ClassVar

import django.db.models.functions.datetime
from django.db import migrations, models


class Migration(migrations.Migration):
    """Columns that older releases need not know, and a table."""

    dependencies: ClassVar = [("hosts", "0041_described_cells")]

    operations: ClassVar = [
        migrations.AddField(
            model_name="hostagent",
            name="abilities",
            field=models.JSONField(
                blank=True, help_text="what it says it can; empty until it said so", null=True
            ),
        ),
        migrations.AddField(
            model_name="hostagent",
            name="wanted_version",
            field=models.CharField(
                blank=True,
                db_default="",
                default="",
                help_text="what is to run there",
                max_length=64,
            ),
        ),
        migrations.CreateModel(
            name="AgentRollout",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("version", models.CharField(max_length=64)),
                ("reason", models.TextField()),
                ("opened_by", models.CharField(max_length=255)),
                (
                    "opened_at",
                    models.DateTimeField(
                        db_default=django.db.models.functions.datetime.Now(), editable=False
                    ),
                ),
                ("waves", models.JSONField(blank=True, default=list)),
                (
                    "wave_at",
                    models.DateTimeField(
                        db_default=django.db.models.functions.datetime.Now(),
                        help_text="when the last of the waves was opened",
                    ),
                ),
                ("failing", models.JSONField(blank=True, default=list)),
                (
                    "halted_at",
                    models.DateTimeField(
                        blank=True, help_text="since when no further host gets it", null=True
                    ),
                ),
                ("is_open", models.BooleanField(default=True)),
                ("closed_at", models.DateTimeField(blank=True, null=True)),
            ],
            options={
                "verbose_name": "rollout of agents",
                "verbose_name_plural": "rollouts of agents",
                "ordering": ("-id",),
                "constraints": [
                    models.UniqueConstraint(
                        condition=models.Q(("is_open", True)),
                        fields=("is_open",),
                        name="hosts_rollout_one_open",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(("closed_at__isnull", True), ("is_open", True)),
                            models.Q(("closed_at__isnull", False), ("is_open", False)),
                            _connector="OR",
                        ),
                        name="hosts_rollout_ended_with_time",
                    ),
                ],
            },
        ),
    ]
