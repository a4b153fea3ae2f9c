"""Hosts that are lost: down, or fenced by an operator."""

from __future__ import annotations

from typing import ClassVar

from django.db import migrations, models
from django.db.models import Q


class Migration(migrations.Migration):
    """One column that every reader of it goes by."""

    dependencies: ClassVar = [("hosts", "0033_parts_of_more_names")]

    operations: ClassVar = [
        migrations.AddField(
            model_name="host",
            name="fenced_since",
            field=models.DateTimeField(
                blank=True,
                editable=False,
                help_text="when an operator fenced it; empty since its agent is heard again",
                null=True,
            ),
        ),
        migrations.AddField(
            model_name="host",
            name="is_lost",
            field=models.GeneratedField(
                db_persist=True,
                expression=Q(state="down") | Q(fenced_since__isnull=False),
                output_field=models.BooleanField(),
            ),
        ),
    ]
