from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("capacity", "0012_flavor_group_sizes")]

    operations = [
        migrations.AddField(
            model_name="reservation",
            name="is_divided",
            field=models.BooleanField(
                db_default=False,
                default=False,
                help_text="cut off a larger slot, so that no flavor need be as large",
            ),
        ),
    ]
