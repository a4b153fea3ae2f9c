from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("commitments", "0002_change_tracking"),
    ]

    operations = [
        migrations.CreateModel(
            name="SlotCheck",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("zone", models.CharField(max_length=255, unique=True)),
                ("snapshot", models.TextField(blank=True)),
                ("snapshot_xmin", models.BigIntegerField(default=0)),
                ("listed_vms", models.BigIntegerField(blank=True, null=True)),
                (
                    "checked_at",
                    models.DateTimeField(
                        blank=True, help_text="last run that did anything", null=True
                    ),
                ),
                (
                    "fully_checked_at",
                    models.DateTimeField(
                        blank=True, help_text="last run that looked at every slot", null=True
                    ),
                ),
                (
                    "is_refused",
                    models.BooleanField(
                        default=False,
                        help_text="the VM list shrank too much: nothing is taken out of slots",
                    ),
                ),
                ("message", models.TextField(blank=True)),
                ("counts", models.JSONField(default=dict)),
            ],
            options={
                "ordering": ("zone",),
            },
        ),
    ]
