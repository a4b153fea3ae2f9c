"""NUMA cells as objects of hosts describe them."""

from __future__ import annotations

from typing import ClassVar

from django.db import migrations, models


class Migration(migrations.Migration):
    """Columns that older releases need not know."""

    dependencies: ClassVar = [("hosts", "0040_life_cycles")]

    operations: ClassVar = [
        migrations.AddField(
            model_name="hostcell",
            name="effective_capacity",
            field=models.BigIntegerField(blank=True, null=True),
        ),
        migrations.AddField(
            model_name="hostcell",
            name="is_described",
            field=models.BooleanField(db_default=False, default=False),
        ),
        migrations.AddConstraint(
            model_name="hostcell",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    ("effective_capacity__isnull", True),
                    ("effective_capacity__gte", 0),
                    _connector="OR",
                ),
                name="hosts_cell_effective_not_negative",
            ),
        ),
    ]
