from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("capacity", "0011_known_domains_and_intents")]

    operations = [
        migrations.AddField(
            model_name="flavorgroup",
            name="flavor_sizes",
            field=models.CharField(
                blank=True,
                db_default="",
                default="",
                editable=False,
                help_text=(
                    "digest of names, memory and vCPUs of its flavors; empty when not known yet"
                ),
                max_length=64,
            ),
        ),
        migrations.AddField(
            model_name="flavorgroup",
            name="resized_at",
            field=models.DateTimeField(
                blank=True,
                help_text="when its flavors last changed size, came or went",
                null=True,
            ),
        ),
    ]
