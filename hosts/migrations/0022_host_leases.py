"""Leases of agents, a row each; agents that enrolled before get theirs."""

import django.db.models.deletion
import django.db.models.functions.datetime
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("hosts", "0021_host_agents"),
    ]

    operations = [
        migrations.CreateModel(
            name="HostLease",
            fields=[
                (
                    "agent",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.CASCADE,
                        primary_key=True,
                        related_name="lease",
                        serialize=False,
                        to="hosts.hostagent",
                    ),
                ),
                (
                    "liveness",
                    models.CharField(
                        choices=[
                            ("enrolled", "enrolled"),
                            ("up", "up"),
                            ("suspect", "suspect"),
                            ("down", "down"),
                        ],
                        default="enrolled",
                        max_length=8,
                    ),
                ),
                (
                    "liveness_since",
                    models.DateTimeField(db_default=django.db.models.functions.datetime.Now()),
                ),
                (
                    "run_id",
                    models.CharField(blank=True, help_text="of the agent's process", max_length=36),
                ),
                (
                    "boot_id",
                    models.CharField(blank=True, help_text="of the host's kernel", max_length=64),
                ),
                (
                    "renewed_at",
                    models.DateTimeField(blank=True, help_text="last heartbeat", null=True),
                ),
                (
                    "expires_at",
                    models.DateTimeField(blank=True, help_text="end of the lease", null=True),
                ),
                ("uptime_seconds", models.BigIntegerField(default=0, help_text="of the host")),
                (
                    "outbox_depth",
                    models.IntegerField(default=0, help_text="results that it could not deliver"),
                ),
            ],
            options={
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(("liveness__in", ["enrolled", "up", "suspect", "down"])),
                        name="hosts_lease_liveness_known",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(("expires_at__isnull", True), ("renewed_at__isnull", True)),
                            models.Q(("expires_at__isnull", False), ("renewed_at__isnull", False)),
                            _connector="OR",
                        ),
                        name="hosts_lease_whole",
                    ),
                ],
            },
        ),
        # Rows that are often updated: room for the new version on the same page.
        migrations.RunSQL(
            "ALTER TABLE hosts_hostlease SET (fillfactor = 70)",
            "ALTER TABLE hosts_hostlease RESET (fillfactor)",
        ),
        migrations.RunSQL(
            "INSERT INTO hosts_hostlease (agent_id, liveness, run_id, boot_id, uptime_seconds,"
            " outbox_depth) SELECT id, 'enrolled', '', '', 0, 0 FROM hosts_hostagent",
            migrations.RunSQL.noop,
        ),
    ]
