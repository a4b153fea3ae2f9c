"""What is known of a host that is emptied through Nova."""

from __future__ import annotations

from typing import ClassVar

from django.db import migrations, models


class Migration(migrations.Migration):
    """Columns with defaults of the database, so that older releases go on beside it."""

    dependencies: ClassVar = [("hosts", "0038_numa_cells")]

    operations: ClassVar = [
        migrations.AddField(
            model_name="eviction",
            name="moving_uuid",
            field=models.CharField(blank=True, db_default="", default="", max_length=64),
        ),
        migrations.AddField(
            model_name="eviction",
            name="failed",
            field=models.JSONField(blank=True, db_default={}, default=dict),
        ),
        migrations.AddField(
            model_name="eviction",
            name="trouble",
            field=models.TextField(blank=True, db_default="", default=""),
        ),
        migrations.AddField(
            model_name="eviction",
            name="service_disabled",
            field=models.BooleanField(db_default=False, default=False),
        ),
    ]
