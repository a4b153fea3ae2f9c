"""Workloads that change their size where they are, with all resources that they take."""

from __future__ import annotations

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("hosts", "0034_lost_hosts")]

    operations = [
        migrations.AddField(
            model_name="workload",
            name="network_bps",
            field=models.BigIntegerField(db_default=0, default=0, help_text="bytes per second"),
        ),
        migrations.AddField(
            model_name="workload",
            name="disk_io_bps",
            field=models.BigIntegerField(db_default=0, default=0, help_text="bytes per second"),
        ),
        migrations.AddField(
            model_name="workload",
            name="gpus",
            field=models.BigIntegerField(db_default=0, default=0),
        ),
        migrations.AddField(
            model_name="workload",
            name="first_attempt",
            field=models.IntegerField(
                db_default=1,
                default=1,
                help_text="the attempt that was the first of this version",
            ),
        ),
        migrations.AddField(
            model_name="workload",
            name="is_made",
            field=models.BooleanField(
                db_default=False,
                default=False,
                help_text="whether its agent has it, in this version or one before",
            ),
        ),
        migrations.RemoveConstraint(model_name="workload", name="hosts_workload_not_negative"),
        migrations.AddConstraint(
            model_name="workload",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    cpus__gte=0,
                    memory_bytes__gte=0,
                    disk_bytes__gte=0,
                    network_bps__gte=0,
                    disk_io_bps__gte=0,
                    gpus__gte=0,
                    attempt__gte=models.F("first_attempt"),
                    first_attempt__gte=1,
                    seq__gte=1,
                ),
                name="hosts_workload_not_negative",
            ),
        ),
    ]
