"""NUMA cells of hosts, as their agents report them."""

from __future__ import annotations

from typing import ClassVar

import django.db.models.deletion
from django.db import migrations, models
from django.db.models import Q


class Migration(migrations.Migration):
    """A row for each resource of a cell."""

    dependencies: ClassVar = [("hosts", "0037_overcommit_rules")]

    operations: ClassVar = [
        migrations.CreateModel(
            name="HostCell",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                (
                    "host",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="cells",
                        to="hosts.host",
                    ),
                ),
                (
                    "cell",
                    models.BigIntegerField(help_text="number of the cell, as the kernel has it"),
                ),
                (
                    "resource",
                    models.CharField(
                        choices=[
                            ("cpu", "CPUs"),
                            ("memory", "memory, B"),
                            ("hugepages", "huge pages, B"),
                        ],
                        max_length=9,
                    ),
                ),
                ("capacity", models.BigIntegerField(db_default=0, default=0)),
                ("allocated", models.BigIntegerField(db_default=0, default=0)),
            ],
            options={
                "verbose_name": "NUMA cell",
                "ordering": ("host_id", "cell", "resource"),
                "constraints": [
                    models.UniqueConstraint(
                        fields=("host", "cell", "resource"), name="hosts_cell_once"
                    ),
                    models.CheckConstraint(
                        condition=Q(resource__in=["cpu", "memory", "hugepages"]),
                        name="hosts_cell_resource_known",
                    ),
                    models.CheckConstraint(
                        condition=Q(cell__gte=0, capacity__gte=0, allocated__gte=0),
                        name="hosts_cell_not_negative",
                    ),
                ],
            },
        ),
    ]
