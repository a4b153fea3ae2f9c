"""Keep what hosts have of network, disk I/O and GPUs, and what slots hold of it."""

import django.db.models.deletion
import django.db.models.functions.datetime
from django.db import migrations, models

import journal.models


class Migration(migrations.Migration):
    dependencies = [
        ("hosts", "0029_host_orders"),
    ]

    operations = [
        migrations.CreateModel(
            name="HostResource",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                (
                    "changed_xid",
                    models.BigIntegerField(
                        db_default=journal.models.CurrentTransactionID(), editable=False
                    ),
                ),
                (
                    "created_at",
                    models.DateTimeField(
                        db_default=django.db.models.functions.datetime.Now(), editable=False
                    ),
                ),
                (
                    "updated_at",
                    models.DateTimeField(
                        db_default=django.db.models.functions.datetime.Now(), editable=False
                    ),
                ),
                (
                    "resource",
                    models.CharField(
                        choices=[("network", "network"), ("disk_io", "disk I/O"), ("gpu", "GPUs")],
                        max_length=8,
                    ),
                ),
                ("capacity", models.BigIntegerField(db_default=0, default=0)),
                ("effective_capacity", models.BigIntegerField(db_default=0, default=0)),
                (
                    "allocated",
                    models.BigIntegerField(
                        db_default=0, default=0, help_text="by VMs, as reported"
                    ),
                ),
                ("reserved", models.BigIntegerField(db_default=0, default=0, help_text="by slots")),
                (
                    "source",
                    models.CharField(
                        choices=[
                            ("detected", "detected"),
                            ("configured", "configured"),
                            ("reported", "reported"),
                            ("unknown", "unknown"),
                        ],
                        default="unknown",
                        max_length=10,
                    ),
                ),
                (
                    "is_stale",
                    models.BooleanField(
                        db_default=False,
                        default=False,
                        help_text="its list could not be read: nothing is admitted",
                    ),
                ),
                (
                    "host",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="resources",
                        to="hosts.host",
                    ),
                ),
            ],
            options={
                "ordering": ("host_id", "resource"),
                "constraints": [
                    models.UniqueConstraint(
                        fields=("host", "resource"), name="hosts_resource_once"
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("resource__in", ["network", "disk_io", "gpu"])),
                        name="hosts_resource_known",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            ("source__in", ["detected", "configured", "reported", "unknown"])
                        ),
                        name="hosts_resource_source_known",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            ("capacity__gte", 0),
                            ("effective_capacity__gte", 0),
                            ("allocated__gte", 0),
                            ("reserved__gte", 0),
                        ),
                        name="hosts_resource_not_negative",
                    ),
                ],
            },
        ),
    ]
