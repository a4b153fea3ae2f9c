from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("placement", "0018_hybrid_reports"),
    ]

    operations = [
        migrations.AddField(
            model_name="cutover",
            name="moved_at",
            field=models.DateTimeField(blank=True, null=True),
        ),
        migrations.AddField(
            model_name="cutover",
            name="moved_provider",
            field=models.UUIDField(blank=True, null=True),
        ),
    ]
