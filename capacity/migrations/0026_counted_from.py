"""Let each room say from which source it was counted."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("capacity", "0025_capacity_history"),
    ]

    operations = [
        migrations.AddField(
            model_name="hostcapacity",
            name="counted_from",
            field=models.CharField(
                blank=True,
                help_text="Source of what is allocated; none where that is not known.",
                max_length=32,
                null=True,
            ),
        ),
    ]
