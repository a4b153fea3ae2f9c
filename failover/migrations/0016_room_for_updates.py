"""Leave room in the pages of tables whose rows are updated again and again."""

from __future__ import annotations

from django.db import migrations

TABLES = (
    "failover_failoverdecision",
    "failover_failoverreservation",
)


class Migration(migrations.Migration):
    dependencies = [("failover", "0015_columns_of_every_write")]

    operations = [
        migrations.RunSQL(
            f"ALTER TABLE {table} SET (fillfactor = 70)",
            f"ALTER TABLE {table} RESET (fillfactor)",
        )
        for table in TABLES
    ]
