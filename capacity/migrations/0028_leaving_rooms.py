"""Keep the room of slots that left hosts until their agents gave it back."""

import django.db.models.deletion
import django.db.models.functions.datetime
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("capacity", "0027_slots_made_by_agents"),
        ("hosts", "0027_slots_held_off"),
    ]

    operations = [
        migrations.CreateModel(
            name="LeavingRoom",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("memory_bytes", models.BigIntegerField()),
                ("vcpus", models.BigIntegerField()),
                (
                    "since",
                    models.DateTimeField(db_default=django.db.models.functions.datetime.Now()),
                ),
                (
                    "host",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="+",
                        to="hosts.host",
                    ),
                ),
                (
                    "workload",
                    models.OneToOneField(
                        help_text="what the agent removes",
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="+",
                        to="hosts.workload",
                    ),
                ),
            ],
            options={
                "ordering": ("id",),
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(("memory_bytes__gte", 0), ("vcpus__gte", 0)),
                        name="capacity_leavingroom_not_negative",
                    )
                ],
            },
        ),
    ]
