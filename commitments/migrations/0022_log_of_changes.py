"""Log what changes in commitments; no index on what every write changes."""

from django.db import migrations, models

import journal.models


class Migration(migrations.Migration):
    dependencies = [
        ("commitments", "0001_squashed_0021_active_commitments"),
        ("journal", "0008_log_of_changes"),
    ]

    operations = [
        migrations.AlterField(
            model_name="commitment",
            name="changed_xid",
            field=models.BigIntegerField(
                db_default=journal.models.CurrentTransactionID(), editable=False
            ),
        ),
        migrations.RunSQL(
            "ALTER TABLE commitments_commitment SET (fillfactor = 85)",
            "ALTER TABLE commitments_commitment RESET (fillfactor)",
        ),
    ]
