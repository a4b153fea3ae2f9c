from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("journal", "0006_leases")]

    operations = [
        migrations.CreateModel(
            name="KeptSums",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("name", models.CharField(max_length=64, unique=True)),
                (
                    "digest",
                    models.CharField(
                        max_length=64, help_text="of the statement and its parameters"
                    ),
                ),
                (
                    "figures",
                    models.TextField(help_text="the rows as JSON; nobody asks for parts of it"),
                ),
                ("computed_at", models.DateTimeField()),
            ],
            options={
                "db_table": "journal_keptsums",
                "ordering": ("name",),
                "verbose_name_plural": "kept sums",
            },
        ),
    ]
