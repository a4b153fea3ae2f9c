"""What operators order about hosts."""

from __future__ import annotations

from typing import ClassVar

import django.contrib.postgres.fields
from django.db import migrations, models


class Migration(migrations.Migration):
    """Columns of hosts that the lists of the cloud do not write."""

    dependencies: ClassVar = [("hosts", "0028_agent_commands")]

    operations: ClassVar = [
        migrations.AddField(
            model_name="host",
            name="maintenance_reason",
            field=models.TextField(blank=True, db_default="", default=""),
        ),
        migrations.AddField(
            model_name="host",
            name="ordered_projects",
            field=django.contrib.postgres.fields.ArrayField(
                base_field=models.CharField(max_length=64),
                blank=True,
                help_text="allowed projects as an operator ordered them; empty if the cloud says "
                "them",
                null=True,
                size=None,
            ),
        ),
    ]
