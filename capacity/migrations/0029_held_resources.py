"""Let a slot say what it holds of network, disk I/O and GPUs."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("capacity", "0028_leaving_rooms"),
    ]

    operations = [
        migrations.AddField(
            model_name="reservation",
            name="held_disk_io_bps",
            field=models.BigIntegerField(
                db_default=0, default=0, editable=False, help_text="bytes per second"
            ),
        ),
        migrations.AddField(
            model_name="reservation",
            name="held_gpus",
            field=models.BigIntegerField(db_default=0, default=0, editable=False),
        ),
        migrations.AddField(
            model_name="reservation",
            name="held_network_bps",
            field=models.BigIntegerField(
                db_default=0, default=0, editable=False, help_text="bytes per second"
            ),
        ),
    ]
