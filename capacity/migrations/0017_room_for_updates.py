"""Leave room in the pages of tables whose rows are updated again and again."""

from __future__ import annotations

from django.db import migrations

TABLES = (
    "capacity_projectquota",
    "capacity_groupcapacity",
    "capacity_flavorcapacity",
)


class Migration(migrations.Migration):
    dependencies = [("capacity", "0016_unfollowed_columns")]

    operations = [
        migrations.RunSQL(
            f"ALTER TABLE {table} SET (fillfactor = 70)",
            f"ALTER TABLE {table} RESET (fillfactor)",
        )
        for table in TABLES
    ]
