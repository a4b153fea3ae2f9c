import django.db.models.functions.datetime
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("journal", "0002_change_tracking_functions"),
    ]

    operations = [
        migrations.CreateModel(
            name="PrunedLog",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                (
                    "log",
                    models.CharField(
                        choices=[
                            ("deletions", "deletions of tracked rows"),
                            ("outbox", "outbox"),
                            ("placement_changes", "changes of the Placement tables"),
                        ],
                        max_length=32,
                        unique=True,
                    ),
                ),
                ("pruned_xid", models.BigIntegerField()),
                (
                    "pruned_at",
                    models.DateTimeField(db_default=django.db.models.functions.datetime.Now()),
                ),
            ],
            options={
                "ordering": ("log",),
            },
        ),
    ]
