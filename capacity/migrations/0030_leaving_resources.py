"""Keep network, disk I/O and GPUs of slots that left hosts until their agents gave them back."""

from django.db import migrations, models

import journal.models


class Migration(migrations.Migration):
    dependencies = [
        ("capacity", "0029_held_resources"),
    ]

    operations = [
        migrations.AddField(
            model_name="leavingroom",
            name="network_bps",
            field=models.BigIntegerField(db_default=0, default=0, help_text="bytes per second"),
        ),
        migrations.AddField(
            model_name="leavingroom",
            name="disk_io_bps",
            field=models.BigIntegerField(db_default=0, default=0, help_text="bytes per second"),
        ),
        migrations.AddField(
            model_name="leavingroom",
            name="gpus",
            field=models.BigIntegerField(db_default=0, default=0),
        ),
        migrations.AddField(
            model_name="leavingroom",
            name="commitment_key",
            field=models.BigIntegerField(
                blank=True, help_text="key of the commitment whose slot it was", null=True
            ),
        ),
        migrations.AddField(
            model_name="leavingroom",
            name="left_xid",
            field=models.BigIntegerField(
                db_default=journal.models.CurrentTransactionID(),
                editable=False,
                help_text="the transaction in which the slot left",
            ),
        ),
        migrations.AddConstraint(
            model_name="leavingroom",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    ("disk_io_bps__gte", 0), ("gpus__gte", 0), ("network_bps__gte", 0)
                ),
                name="capacity_leavingroom_others_not_negative",
            ),
        ),
    ]
