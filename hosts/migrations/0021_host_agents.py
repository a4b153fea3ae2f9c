"""Agents of hosts, their keys and the tokens that let them enrol."""

import uuid

import django.db.models.deletion
import django.db.models.functions.datetime
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("hosts", "0020_arrival_of_vms"),
    ]

    operations = [
        migrations.CreateModel(
            name="EnrolmentToken",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("token_sha256", models.CharField(max_length=64, unique=True)),
                (
                    "name_glob",
                    models.CharField(help_text="pattern of the hosts' names", max_length=255),
                ),
                ("expires_at", models.DateTimeField()),
                ("uses_left", models.IntegerField()),
                ("created_by", models.CharField(max_length=255)),
                (
                    "created_at",
                    models.DateTimeField(
                        db_default=django.db.models.functions.datetime.Now(), editable=False
                    ),
                ),
            ],
            options={
                "ordering": ("-id",),
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(("uses_left__gte", 0)),
                        name="hosts_token_uses_not_negative",
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="HostAgent",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("uuid", models.UUIDField(default=uuid.uuid4, unique=True)),
                ("host_name", models.CharField(max_length=255, unique=True)),
                ("agent_version", models.CharField(blank=True, max_length=64)),
                ("fence_epoch", models.BigIntegerField(default=1)),
                (
                    "enrolled_at",
                    models.DateTimeField(
                        db_default=django.db.models.functions.datetime.Now(), editable=False
                    ),
                ),
                (
                    "reported_at",
                    models.DateTimeField(blank=True, help_text="when the report came", null=True),
                ),
                (
                    "generated_at",
                    models.DateTimeField(blank=True, help_text="when it was made", null=True),
                ),
                ("report", models.JSONField(blank=True, null=True)),
            ],
            options={
                "ordering": ("host_name",),
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(
                                ("generated_at__isnull", True),
                                ("report__isnull", True),
                                ("reported_at__isnull", True),
                            ),
                            models.Q(
                                ("generated_at__isnull", False),
                                ("report__isnull", False),
                                ("reported_at__isnull", False),
                            ),
                            _connector="OR",
                        ),
                        name="hosts_agent_report_whole",
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="HostKey",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("kid", models.CharField(max_length=16, unique=True)),
                ("public_key", models.BinaryField(max_length=32)),
                (
                    "state",
                    models.CharField(
                        choices=[("active", "active"), ("revoked", "revoked")],
                        default="active",
                        max_length=8,
                    ),
                ),
                (
                    "created_at",
                    models.DateTimeField(
                        db_default=django.db.models.functions.datetime.Now(), editable=False
                    ),
                ),
                ("revoked_at", models.DateTimeField(blank=True, null=True)),
                (
                    "agent",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="keys",
                        to="hosts.hostagent",
                    ),
                ),
                (
                    "token",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="keys",
                        to="hosts.enrolmenttoken",
                    ),
                ),
            ],
            options={
                "ordering": ("-id",),
                "constraints": [
                    models.UniqueConstraint(
                        condition=models.Q(("state", "active")),
                        fields=("agent",),
                        name="hosts_key_one_active",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(("revoked_at__isnull", True), ("state", "active")),
                            models.Q(("revoked_at__isnull", False), ("state", "revoked")),
                            _connector="OR",
                        ),
                        name="hosts_key_revoked_with_time",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="RequestNonce",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("nonce", models.CharField(max_length=32)),
                (
                    "seen_at",
                    models.DateTimeField(db_default=django.db.models.functions.datetime.Now()),
                ),
                (
                    "agent",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="nonces",
                        to="hosts.hostagent",
                    ),
                ),
            ],
            options={
                "ordering": ("id",),
                "constraints": [
                    models.UniqueConstraint(fields=("agent", "nonce"), name="hosts_nonce_once")
                ],
            },
        ),
    ]
