"""Remember when a VM came to its host, which is not when it was created."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("hosts", "0019_aggregate_numbers"),
    ]

    operations = [
        migrations.AddField(
            model_name="instance",
            name="arrived_at",
            field=models.DateTimeField(
                blank=True,
                editable=False,
                help_text="When it came to the host it is on; kept by the database.",
                null=True,
            ),
        ),
    ]
