from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("commitments", "0007_usage_history_start")]

    operations = [
        migrations.AddField(
            model_name="slotcheck",
            name="host_refusal",
            field=models.TextField(
                blank=True,
                db_default="",
                help_text="why hosts that are down or gone are not believed lost",
            ),
        ),
    ]
