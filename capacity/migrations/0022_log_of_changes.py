"""Look up what changed in the log of changes instead of in an index of each table."""

from django.db import migrations, models

import journal.models

TABLES = ("hostcapacity", "reservation", "reservationallocation")
ROOM_FOR_UPDATES = {"capacity_hostcapacity": 70, "capacity_reservation": 85}


class Migration(migrations.Migration):
    dependencies = [
        ("capacity", "0001_squashed_0020_functions_of_calls"),
        ("hosts", "0012_log_of_changes"),
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
