import django.contrib.postgres.fields
import django.db.models.functions.datetime
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("placement", "0019_moved_without_us"),
    ]

    operations = [
        migrations.CreateModel(
            name="WriteFence",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                (
                    "roots",
                    django.contrib.postgres.fields.ArrayField(
                        base_field=models.BigIntegerField(), default=list, size=None
                    ),
                ),
                (
                    "consumers",
                    django.contrib.postgres.fields.ArrayField(
                        base_field=models.UUIDField(), default=list, size=None
                    ),
                ),
                ("is_whole", models.BooleanField(db_default=False)),
                (
                    "created_at",
                    models.DateTimeField(db_default=django.db.models.functions.datetime.Now()),
                ),
                ("sent_at", models.DateTimeField(blank=True, null=True)),
                ("ends_at", models.DateTimeField()),
            ],
            options={
                "db_table": "placement_write_fence",
            },
        ),
        migrations.AlterField(
            model_name="cutover",
            name="phase",
            field=models.CharField(
                choices=[
                    ("off", "not begun"),
                    ("copying", "the other Placement answers; changes are copied"),
                    ("closing", "the other Placement answers; writes are held"),
                    ("switched", "Headroom answers; changes are mirrored back"),
                    ("returning", "Headroom answers; writes are held"),
                    ("parted", "each answers for its own providers"),
                    ("parting", "each answers for its own providers; writes are held"),
                ],
                db_default="off",
                max_length=16,
            ),
        ),
    ]
