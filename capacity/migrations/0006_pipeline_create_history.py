from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("capacity", "0005_pipeline_change_tracking")]

    operations = [
        migrations.AddField(
            model_name="pipeline",
            name="create_history",
            field=models.BooleanField(default=True, help_text="record the decisions made with it"),
        ),
        migrations.AlterField(
            model_name="pipeline",
            name="ignore_preselection",
            field=models.BooleanField(
                default=False, help_text="replace the caller's hosts by all candidates"
            ),
        ),
    ]
