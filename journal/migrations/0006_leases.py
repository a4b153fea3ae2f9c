from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("journal", "0005_times_of_the_database"),
    ]

    operations = [
        migrations.CreateModel(
            name="Lease",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("name", models.CharField(max_length=255, unique=True)),
                ("holder", models.CharField(max_length=255)),
                ("epoch", models.BigIntegerField(help_text="how often it has changed hands")),
                ("taken_at", models.DateTimeField()),
                ("renewed_at", models.DateTimeField()),
                ("expires_at", models.DateTimeField()),
            ],
            options={"ordering": ("name",)},
        ),
        migrations.AddConstraint(
            model_name="lease",
            constraint=models.UniqueConstraint(
                fields=("name", "epoch"), name="journal_lease_epoch_is_key"
            ),
        ),
        migrations.CreateModel(
            name="BeatEntry",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("entry", models.CharField(max_length=64, unique=True)),
                ("last_run_at", models.DateTimeField()),
                ("epoch", models.BigIntegerField()),
            ],
            options={"ordering": ("entry",), "verbose_name_plural": "beat entries"},
        ),
    ]
