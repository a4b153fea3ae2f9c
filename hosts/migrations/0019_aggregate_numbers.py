"""Remember what Nova's addresses call an aggregate."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("hosts", "0018_os_version"),
    ]

    operations = [
        migrations.AddField(
            model_name="aggregate",
            name="nova_number",
            field=models.IntegerField(
                blank=True,
                help_text="What Nova's addresses call it, as far as a list told it.",
                null=True,
            ),
        ),
    ]
