"""The tables of all migrations that it replaces, as they were at the end of them."""

import django.db.models.functions.datetime
from django.db import migrations, models

import journal.models


class Migration(migrations.Migration):
    initial = True

    replaces = [
        ("journal", "0001_initial"),
        ("journal", "0002_change_tracking_functions"),
        ("journal", "0003_pruned_log"),
        ("journal", "0004_outbox_age_index"),
        ("journal", "0005_times_of_the_database"),
        ("journal", "0006_leases"),
        ("journal", "0007_kept_sums"),
    ]
    dependencies = []

    operations = [
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
            options={
                "verbose_name_plural": "beat entries",
                "ordering": ("entry",),
            },
        ),
        migrations.CreateModel(
            name="Heartbeat",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("name", models.CharField(max_length=64, unique=True)),
                ("beaten_at", models.DateTimeField()),
            ],
            options={
                "ordering": ("name",),
            },
        ),
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
                        help_text="of the statement and its parameters", max_length=64
                    ),
                ),
                (
                    "figures",
                    models.TextField(help_text="the rows as JSON; nobody asks for parts of it"),
                ),
                ("computed_at", models.DateTimeField()),
            ],
            options={
                "verbose_name_plural": "kept sums",
                "db_table": "journal_keptsums",
                "ordering": ("name",),
            },
        ),
        migrations.CreateModel(
            name="ProcessClock",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("process", models.CharField(max_length=255, unique=True)),
                ("deviation_seconds", models.FloatField(help_text="positive when it is ahead")),
                ("looked_at", models.DateTimeField()),
            ],
            options={
                "ordering": ("process",),
            },
        ),
        migrations.CreateModel(
            name="PrunedLog",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                (
                    "log",
                    models.CharField(
                        choices=[
                            ("deletions", "deletions of tracked rows"),
                            ("outbox", "outbox"),
                            ("placement_changes", "changes of the Placement tables"),
                        ],
                        max_length=32,
                        unique=True,
                    ),
                ),
                ("pruned_xid", models.BigIntegerField()),
                (
                    "pruned_at",
                    models.DateTimeField(db_default=django.db.models.functions.datetime.Now()),
                ),
            ],
            options={
                "ordering": ("log",),
            },
        ),
        migrations.CreateModel(
            name="AuditEntry",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                (
                    "created_at",
                    models.DateTimeField(
                        db_default=django.db.models.functions.datetime.Now(), db_index=True
                    ),
                ),
                ("actor", models.CharField(max_length=255)),
                ("request_id", models.CharField(blank=True, db_index=True, max_length=255)),
                ("action", models.CharField(max_length=64)),
                ("object_type", models.CharField(max_length=64)),
                ("object_id", models.CharField(max_length=255)),
                ("before", models.JSONField(blank=True, null=True)),
                ("after", models.JSONField(blank=True, null=True)),
                ("reason", models.TextField(blank=True)),
            ],
            options={
                "verbose_name_plural": "audit entries",
                "ordering": ("-id",),
                "indexes": [
                    models.Index(
                        fields=["object_type", "object_id", "-id"], name="journal_audit_object_idx"
                    ),
                    models.Index(fields=["action", "-id"], name="journal_audit_action_idx"),
                ],
            },
        ),
        migrations.CreateModel(
            name="DeletedRow",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("table_name", models.CharField(max_length=64)),
                ("row_id", models.BigIntegerField()),
                (
                    "changed_xid",
                    models.BigIntegerField(db_default=journal.models.CurrentTransactionID()),
                ),
                (
                    "deleted_at",
                    models.DateTimeField(
                        db_default=django.db.models.functions.datetime.Now(), db_index=True
                    ),
                ),
            ],
            options={
                "indexes": [
                    models.Index(
                        fields=["table_name", "changed_xid"], name="journal_deleted_row_idx"
                    )
                ],
            },
        ),
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
            options={
                "ordering": ("name",),
                "constraints": [
                    models.UniqueConstraint(
                        fields=("name", "epoch"), name="journal_lease_epoch_is_key"
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="Outbox",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                (
                    "created_at",
                    models.DateTimeField(db_default=django.db.models.functions.datetime.Now()),
                ),
                (
                    "transaction_id",
                    models.BigIntegerField(
                        db_default=journal.models.CurrentTransactionID(), db_index=True
                    ),
                ),
                ("topic", models.CharField(max_length=64)),
                ("object_type", models.CharField(max_length=64)),
                ("object_id", models.CharField(max_length=255)),
                ("payload", models.JSONField(default=dict)),
            ],
            options={
                "verbose_name_plural": "outbox",
                "ordering": ("transaction_id", "id"),
                "indexes": [
                    models.Index(
                        fields=["topic", "transaction_id"], name="journal_outbox_topic_idx"
                    ),
                    models.Index(fields=["created_at"], name="journal_outbox_age_idx"),
                ],
            },
        ),
    ]
