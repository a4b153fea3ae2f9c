"""Log what changes in the tables that readers follow; no index on what every write changes."""

from django.db import migrations, models

import journal.models

TABLES = ("aggregate", "host", "instance")
ROOM_FOR_UPDATES = {"hosts_host": 85, "hosts_instance": 90}


class Migration(migrations.Migration):
    dependencies = [
        ("hosts", "0001_squashed_0011_unfollowed_columns"),
        ("journal", "0008_log_of_changes"),
    ]

    operations = [
        *(
            migrations.AlterField(
                model_name=model,
                name="changed_xid",
                field=models.BigIntegerField(
                    db_default=journal.models.CurrentTransactionID(), editable=False
                ),
            )
            for model in TABLES
        ),
        *(
            migrations.RunSQL(
                f"ALTER TABLE {table} SET (fillfactor = {percent})",
                f"ALTER TABLE {table} RESET (fillfactor)",
            )
            for table, percent in ROOM_FOR_UPDATES.items()
        ),
    ]
