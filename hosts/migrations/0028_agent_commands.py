"""What operators tell agents to do."""

from __future__ import annotations

from typing import ClassVar

from django.db import migrations, models


class Migration(migrations.Migration):
    """A column of agents."""

    dependencies: ClassVar = [("hosts", "0027_slots_held_off")]

    operations: ClassVar = [
        migrations.AddField(
            model_name="hostagent",
            name="commands",
            field=models.JSONField(
                blank=True,
                db_default=[],
                default=list,
                help_text="what it is told to do and did not say that it did: id, command",
            ),
        ),
    ]
