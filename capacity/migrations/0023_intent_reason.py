"""Keep why an intent that nobody told was inferred."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("capacity", "0022_log_of_changes")]

    operations = [
        migrations.AddField(
            model_name="schedulingdecision",
            name="intent_reason",
            field=models.CharField(
                blank=True,
                db_default="",
                help_text="how it was inferred; empty where the caller told it",
                max_length=600,
            ),
        )
    ]
