"""Keep what capacity was: hours and days of zones and groups, days of hosts."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("capacity", "0024_fewer_indexes"),
    ]

    operations = [
        migrations.CreateModel(
            name="CapacityHistory",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                (
                    "span",
                    models.CharField(choices=[("hour", "hour"), ("day", "day")], max_length=4),
                ),
                ("at", models.DateTimeField(help_text="when the hour or the day began, UTC")),
                ("zone", models.CharField(max_length=255)),
                (
                    "group_name",
                    models.CharField(
                        blank=True,
                        help_text="flavor group; empty for the whole zone",
                        max_length=255,
                    ),
                ),
                (
                    "hours",
                    models.PositiveSmallIntegerField(
                        default=1, help_text="how many hours it is the mean of; 1 for an hour"
                    ),
                ),
                (
                    "is_made_up",
                    models.BooleanField(
                        default=False, help_text="written by the demo for times when nobody looked"
                    ),
                ),
                (
                    "total_memory_bytes",
                    models.BigIntegerField(
                        help_text="bytes of memory that VMs could take if the hosts were empty"
                    ),
                ),
                (
                    "total_vcpus",
                    models.BigIntegerField(
                        help_text="vCPUs that VMs could take if the hosts were empty"
                    ),
                ),
                (
                    "covered_memory_bytes",
                    models.BigIntegerField(
                        help_text="bytes of memory of running VMs that a commitment covers"
                    ),
                ),
                (
                    "covered_vcpus",
                    models.BigIntegerField(
                        help_text="vCPUs of running VMs that a commitment covers"
                    ),
                ),
                (
                    "payg_memory_bytes",
                    models.BigIntegerField(
                        help_text="bytes of memory of running VMs that no commitment covers"
                    ),
                ),
                (
                    "payg_vcpus",
                    models.BigIntegerField(
                        help_text="vCPUs of running VMs that no commitment covers"
                    ),
                ),
                (
                    "reserved_unused_memory_bytes",
                    models.BigIntegerField(
                        help_text="bytes of memory that slots of commitments hold beyond the VMs in them"
                    ),
                ),
                (
                    "reserved_unused_vcpus",
                    models.BigIntegerField(
                        help_text="vCPUs that slots of commitments hold beyond the VMs in them"
                    ),
                ),
                (
                    "failover_memory_bytes",
                    models.BigIntegerField(
                        blank=True,
                        help_text="bytes of memory that failover reservations hold; of a whole zone only, since no group owns it",
                        null=True,
                    ),
                ),
                (
                    "failover_vcpus",
                    models.BigIntegerField(
                        blank=True,
                        help_text="vCPUs that failover reservations hold; of a whole zone only, since no group owns it",
                        null=True,
                    ),
                ),
                (
                    "in_flight_memory_bytes",
                    models.BigIntegerField(
                        blank=True,
                        help_text="bytes of memory held for VMs that are being placed; of a whole zone only",
                        null=True,
                    ),
                ),
                (
                    "in_flight_vcpus",
                    models.BigIntegerField(
                        blank=True,
                        help_text="vCPUs held for VMs that are being placed; of a whole zone only",
                        null=True,
                    ),
                ),
                (
                    "free_memory_bytes",
                    models.BigIntegerField(
                        help_text="bytes of memory that are left: on all hosts of a zone, or for a group if no other took any (groups overlap)"
                    ),
                ),
                (
                    "free_vcpus",
                    models.BigIntegerField(
                        help_text="vCPUs that are left: on all hosts of a zone, or for a group if no other took any (groups overlap)"
                    ),
                ),
                (
                    "exclusively_free_memory_bytes",
                    models.BigIntegerField(
                        blank=True,
                        help_text="bytes of memory of what is free that the group has for itself, which is what Limes is told",
                        null=True,
                    ),
                ),
                (
                    "exclusively_free_vcpus",
                    models.BigIntegerField(
                        blank=True,
                        help_text="vCPUs of what is free that the group has for itself, which is what Limes is told",
                        null=True,
                    ),
                ),
            ],
            options={
                "verbose_name_plural": "capacity history",
                "ordering": ("-at", "zone", "group_name", "span"),
                "indexes": [models.Index(fields=["span", "at"], name="capacity_history_at_idx")],
                "constraints": [
                    models.UniqueConstraint(
                        fields=("zone", "group_name", "span", "at"), name="capacity_history_unique"
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("zone", ""), _negated=True),
                        name="capacity_history_zone_not_empty",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("span__in", ["hour", "day"])),
                        name="capacity_history_span_known",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="HostHistory",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("day", models.DateField(help_text="UTC")),
                ("host_name", models.CharField(max_length=255)),
                (
                    "is_made_up",
                    models.BooleanField(
                        default=False, help_text="written by the demo for times when nobody looked"
                    ),
                ),
                (
                    "effective_memory_bytes",
                    models.BigIntegerField(help_text="bytes of memory that may be promised on it"),
                ),
                (
                    "effective_vcpus",
                    models.BigIntegerField(help_text="vCPUs that may be promised on it"),
                ),
                (
                    "allocated_memory_bytes",
                    models.BigIntegerField(help_text="bytes of memory of its VMs"),
                ),
                ("allocated_vcpus", models.BigIntegerField(help_text="vCPUs of its VMs")),
                (
                    "committed_memory_bytes",
                    models.BigIntegerField(
                        help_text="bytes of memory that slots of commitments hold beyond their VMs"
                    ),
                ),
                (
                    "committed_vcpus",
                    models.BigIntegerField(
                        help_text="vCPUs that slots of commitments hold beyond their VMs"
                    ),
                ),
                (
                    "failover_memory_bytes",
                    models.BigIntegerField(
                        help_text="bytes of memory that failover reservations hold"
                    ),
                ),
                (
                    "failover_vcpus",
                    models.BigIntegerField(help_text="vCPUs that failover reservations hold"),
                ),
                (
                    "in_flight_memory_bytes",
                    models.BigIntegerField(
                        help_text="bytes of memory held for VMs that are being placed"
                    ),
                ),
                (
                    "in_flight_vcpus",
                    models.BigIntegerField(help_text="vCPUs held for VMs that are being placed"),
                ),
            ],
            options={
                "verbose_name_plural": "host history",
                "ordering": ("-day", "host_name"),
                "indexes": [models.Index(fields=["day"], name="capacity_hosthistory_day_idx")],
                "constraints": [
                    models.UniqueConstraint(
                        fields=("host_name", "day"), name="capacity_hosthistory_unique"
                    )
                ],
            },
        ),
    ]
