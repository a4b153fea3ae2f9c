"""The tables of all migrations that it replaces, as they were at the end of them."""

import django.core.validators
import django.db.models.deletion
import django.db.models.functions.datetime
import django.db.models.functions.math
import django.db.models.lookups
from django.db import migrations, models

import journal.models


class Migration(migrations.Migration):
    initial = True

    replaces = [
        ("commitments", "0001_initial"),
        ("commitments", "0002_change_tracking"),
        ("commitments", "0003_slot_verification"),
        ("commitments", "0004_sync_bookkeeping"),
        ("commitments", "0005_usage_bookkeeping"),
        ("commitments", "0006_usage_triggers"),
        ("commitments", "0007_usage_history_start"),
        ("commitments", "0008_host_list_refusal"),
        ("commitments", "0009_gone_commitments_index"),
        ("commitments", "0010_period_end_index"),
        ("commitments", "0011_memory_in_whole_mib"),
        ("commitments", "0012_known_scheduling_domains"),
        ("commitments", "0013_usage_trigger_plans"),
        ("commitments", "0014_compaction_runs"),
        ("commitments", "0015_published_service_infos"),
        ("commitments", "0016_refused_changes"),
        ("commitments", "0017_commitment_first_listed_at"),
        ("commitments", "0018_times_of_the_database"),
        ("commitments", "0019_misdated_commitments"),
        ("commitments", "0020_unfollowed_columns"),
        ("commitments", "0021_active_commitments"),
    ]
    dependencies = []

    operations = [
        migrations.CreateModel(
            name="ProjectDeparture",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("project_id", models.CharField(max_length=64)),
                (
                    "changed_xid",
                    models.BigIntegerField(
                        db_default=journal.models.CurrentTransactionID(),
                        db_index=True,
                        editable=False,
                    ),
                ),
            ],
            options={
                "ordering": ("id",),
            },
        ),
        migrations.CreateModel(
            name="ProjectUsage",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("project_id", models.CharField(max_length=64, unique=True)),
                ("assigned_vms", models.PositiveBigIntegerField(default=0)),
                (
                    "uncovered_vms",
                    models.PositiveBigIntegerField(
                        default=0,
                        help_text="VMs that no memory commitment of their zone and group had room for",
                    ),
                ),
                (
                    "next_change_at",
                    models.DateTimeField(
                        blank=True,
                        help_text="next start or end of an accepted commitment",
                        null=True,
                    ),
                ),
                (
                    "is_due",
                    models.BooleanField(
                        default=False, help_text="the last run could not look at it"
                    ),
                ),
                ("written_xid", models.BigIntegerField(blank=True, editable=False, null=True)),
            ],
            options={
                "verbose_name_plural": "project usage",
                "ordering": ("project_id",),
            },
        ),
        migrations.CreateModel(
            name="SlotCheck",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("zone", models.CharField(max_length=255, unique=True)),
                ("snapshot", models.TextField(blank=True)),
                ("snapshot_xmin", models.BigIntegerField(default=0)),
                ("listed_vms", models.BigIntegerField(blank=True, null=True)),
                (
                    "checked_at",
                    models.DateTimeField(
                        blank=True, help_text="last run that did anything", null=True
                    ),
                ),
                (
                    "fully_checked_at",
                    models.DateTimeField(
                        blank=True, help_text="last run that looked at every slot", null=True
                    ),
                ),
                (
                    "is_refused",
                    models.BooleanField(
                        default=False,
                        help_text="the VM list shrank too much: nothing is taken out of slots",
                    ),
                ),
                ("message", models.TextField(blank=True)),
                (
                    "host_refusal",
                    models.TextField(
                        blank=True,
                        db_default="",
                        help_text="why hosts that are down or gone are not believed lost",
                    ),
                ),
                ("counts", models.JSONField(default=dict)),
            ],
            options={
                "ordering": ("zone",),
            },
        ),
        migrations.CreateModel(
            name="SyncRun",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("started_at", models.DateTimeField()),
                ("finished_at", models.DateTimeField(blank=True, null=True)),
                ("source", models.CharField(max_length=64)),
                ("outcome", models.CharField(blank=True, max_length=32)),
                ("counts", models.JSONField(default=dict)),
                ("error_code", models.CharField(blank=True, max_length=64)),
                ("message", models.TextField(blank=True)),
                ("shrink_accepted_by", models.CharField(blank=True, db_default="", max_length=255)),
                ("shrink_accepted_at", models.DateTimeField(blank=True, null=True)),
            ],
            options={
                "ordering": ("-id",),
            },
        ),
        migrations.CreateModel(
            name="AssignmentPeriod",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("vm_uuid", models.CharField(max_length=64)),
                (
                    "resource_type",
                    models.CharField(
                        choices=[("memory", "memory"), ("cores", "cores")], max_length=16
                    ),
                ),
                ("commitment_uuid", models.CharField(max_length=40)),
                ("project_id", models.CharField(max_length=64)),
                ("valid_from", models.DateTimeField()),
                ("valid_to", models.DateTimeField(blank=True, null=True)),
            ],
            options={
                "ordering": ("-id",),
                "indexes": [
                    models.Index(fields=["vm_uuid", "id"], name="commitments_period_vm_idx"),
                    models.Index(
                        fields=["commitment_uuid", "id"], name="commitments_period_owner_idx"
                    ),
                    models.Index(
                        condition=models.Q(("valid_to__isnull", False)),
                        fields=["valid_to"],
                        name="commitments_period_end_idx",
                    ),
                ],
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(
                            ("valid_to__isnull", True),
                            ("valid_to__gte", models.F("valid_from")),
                            _connector="OR",
                        ),
                        name="commitments_assignmentperiod_forward",
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="Commitment",
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
                    "changed_xid",
                    models.BigIntegerField(
                        db_default=journal.models.CurrentTransactionID(),
                        db_index=True,
                        editable=False,
                    ),
                ),
                (
                    "commitment_uuid",
                    models.CharField(
                        max_length=40,
                        unique=True,
                        validators=[django.core.validators.RegexValidator("^[a-zA-Z0-9-]{6,40}$")],
                    ),
                ),
                ("scheduling_domain", models.CharField(default="nova", max_length=16)),
                ("flavor_group_name", models.CharField(max_length=255)),
                (
                    "resource_type",
                    models.CharField(
                        choices=[("memory", "memory"), ("cores", "cores")], max_length=16
                    ),
                ),
                ("requested_amount", models.BigIntegerField(help_text="bytes of memory, or vCPUs")),
                ("zone", models.CharField(max_length=255)),
                ("project_id", models.CharField(db_index=True, max_length=64)),
                ("domain_id", models.CharField(blank=True, max_length=64)),
                ("start_time", models.DateTimeField(blank=True, null=True)),
                ("end_time", models.DateTimeField(blank=True, null=True)),
                ("confirm_by", models.DateTimeField(blank=True, null=True)),
                ("confirmed_at", models.DateTimeField(blank=True, null=True)),
                (
                    "state",
                    models.CharField(
                        choices=[
                            ("planned", "planned"),
                            ("pending", "pending"),
                            ("guaranteed", "guaranteed"),
                            ("confirmed", "confirmed"),
                            ("superseded", "superseded"),
                            ("expired", "expired"),
                        ],
                        max_length=16,
                    ),
                ),
                ("allow_rejection", models.BooleanField(default=False)),
                ("generation", models.BigIntegerField(default=1)),
                ("creator_request_id", models.CharField(blank=True, max_length=255)),
                ("limes_id", models.BigIntegerField(blank=True, null=True)),
                (
                    "limes_record",
                    models.JSONField(
                        blank=True,
                        help_text="the commitment as Limes described it at the last sync",
                        null=True,
                    ),
                ),
                ("origin", models.CharField(default="api", max_length=16)),
                (
                    "first_listed_at",
                    models.DateTimeField(
                        blank=True,
                        help_text="start of the first sync that found it in Limes",
                        null=True,
                    ),
                ),
                (
                    "missing_since",
                    models.DateTimeField(
                        blank=True,
                        help_text="start of the first sync in a row that did not find it",
                        null=True,
                    ),
                ),
                (
                    "missed_syncs",
                    models.PositiveIntegerField(
                        db_default=0,
                        default=0,
                        help_text="complete syncs in a row that did not find it in Limes",
                    ),
                ),
                ("accepted_spec", models.JSONField(blank=True, null=True)),
                ("accepted_at", models.DateTimeField(blank=True, null=True)),
                (
                    "accepted_amount",
                    models.BigIntegerField(
                        blank=True,
                        help_text="amount of the accepted spec: bytes, or vCPUs",
                        null=True,
                    ),
                ),
                ("last_reconcile_at", models.DateTimeField(blank=True, null=True)),
                ("next_reconcile_at", models.DateTimeField(blank=True, null=True)),
                ("used_memory_bytes", models.BigIntegerField(default=0)),
                ("used_vcpus", models.BigIntegerField(default=0)),
                ("last_usage_reconcile_at", models.DateTimeField(blank=True, null=True)),
                ("usage_observed_generation", models.BigIntegerField(blank=True, null=True)),
                ("ready_status", models.BooleanField(default=None, null=True)),
                (
                    "ready_reason",
                    models.CharField(
                        blank=True,
                        choices=[
                            ("Accepted", "accepted"),
                            ("Planned", "planned"),
                            ("Reserving", "reserving"),
                            ("Rejected", "rejected"),
                            ("superseded", "superseded"),
                            ("expired", "expired"),
                        ],
                        max_length=32,
                    ),
                ),
                ("ready_message", models.TextField(blank=True)),
                ("ready_observed_generation", models.BigIntegerField(blank=True, null=True)),
                ("ready_changed_at", models.DateTimeField(blank=True, null=True)),
                ("status_summary", models.TextField(blank=True)),
            ],
            options={
                "ordering": ("-created_at", "-id"),
                "indexes": [
                    models.Index(
                        fields=["flavor_group_name", "zone", "resource_type", "state"],
                        name="commitments_headroom_idx",
                    ),
                    models.Index(
                        condition=models.Q(("next_reconcile_at__isnull", False)),
                        fields=["next_reconcile_at"],
                        name="commitments_due_idx",
                    ),
                    models.Index(fields=["zone", "state"], name="commitments_zone_state_idx"),
                    models.Index(
                        condition=models.Q(("ready_reason", "Reserving")),
                        fields=["next_reconcile_at"],
                        name="commitments_waiting_idx",
                    ),
                    models.Index(
                        condition=models.Q(
                            ("next_reconcile_at__isnull", True), ("ready_reason", "Expired")
                        ),
                        fields=["end_time"],
                        name="commitments_ended_idx",
                    ),
                ],
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(("commitment_uuid__regex", "^[a-zA-Z0-9-]{6,40}$")),
                        name="commitments_commitment_uuid_valid",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            (
                                "state__in",
                                [
                                    "planned",
                                    "pending",
                                    "guaranteed",
                                    "confirmed",
                                    "superseded",
                                    "expired",
                                ],
                            )
                        ),
                        name="commitments_commitment_state_known",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("resource_type__in", ["memory", "cores"])),
                        name="commitments_commitment_resource_type_known",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("requested_amount__gte", 0)),
                        name="commitments_commitment_amount_not_negative",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(("resource_type", "memory"), _negated=True),
                            django.db.models.lookups.Exact(
                                django.db.models.functions.math.Mod(
                                    models.F("requested_amount"), models.Value(1048576)
                                ),
                                models.Value(0),
                            ),
                            _connector="OR",
                        ),
                        name="commitments_commitment_memory_whole_mib",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            (
                                "scheduling_domain__in",
                                ("nova", "cinder", "manila", "machines", "pods"),
                            )
                        ),
                        name="commitments_commitment_scheduling_domain_known",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(("zone", ""), _negated=True),
                            models.Q(("flavor_group_name", ""), _negated=True),
                            models.Q(("project_id", ""), _negated=True),
                        ),
                        name="commitments_commitment_identity_not_empty",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="CommitmentEvent",
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
                ("commitment_uuid", models.CharField(db_index=True, max_length=40)),
                ("actor", models.CharField(max_length=255)),
                ("request_id", models.CharField(blank=True, max_length=255)),
                ("action", models.CharField(max_length=64)),
                ("before", models.JSONField(blank=True, null=True)),
                ("after", models.JSONField(blank=True, null=True)),
                ("reason", models.TextField(blank=True)),
                ("explanation", models.JSONField(blank=True, null=True)),
            ],
            options={
                "ordering": ("-id",),
                "indexes": [
                    models.Index(
                        condition=models.Q(("after__isnull", True)),
                        fields=["created_at"],
                        name="commitments_event_gone_idx",
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="CompactionRun",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("zone", models.CharField(max_length=255)),
                ("started_at", models.DateTimeField()),
                ("finished_at", models.DateTimeField(blank=True, null=True)),
                (
                    "outcome",
                    models.CharField(
                        blank=True,
                        choices=[
                            ("done", "done"),
                            ("limited", "stopped at its limit"),
                            ("busy", "stopped for others"),
                            ("refused", "facts not believed"),
                            ("failed", "failed"),
                            ("abandoned", "abandoned"),
                        ],
                        max_length=16,
                    ),
                ),
                (
                    "hosts_planned",
                    models.PositiveIntegerField(
                        default=0, help_text="hosts that were to become free"
                    ),
                ),
                ("hosts_freed", models.PositiveIntegerField(default=0)),
                ("slots_moved", models.PositiveIntegerField(default=0)),
                (
                    "hosts_refused",
                    models.PositiveIntegerField(
                        default=0,
                        help_text="hosts where others got in the way between plan and step",
                    ),
                ),
                (
                    "counts",
                    models.JSONField(default=dict, help_text="hosts of the zone by what they hold"),
                ),
                ("message", models.TextField(blank=True)),
                ("actor", models.CharField(blank=True, max_length=255)),
                ("request_id", models.CharField(blank=True, max_length=255)),
            ],
            options={
                "ordering": ("-id",),
                "indexes": [models.Index(fields=["zone", "id"], name="commitments_compaction_idx")],
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(("finished_at__isnull", True), ("outcome", "")),
                            models.Q(
                                models.Q(("outcome", ""), _negated=True),
                                ("finished_at__isnull", False),
                            ),
                            _connector="OR",
                        ),
                        name="commitments_compactionrun_outcome_at_end",
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="PublishedServiceInfo",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("version", models.BigIntegerField(unique=True)),
                ("resources", models.JSONField()),
                (
                    "published_at",
                    models.DateTimeField(db_default=django.db.models.functions.datetime.Now()),
                ),
                ("replaced_at", models.DateTimeField(null=True)),
            ],
            options={
                "constraints": [
                    models.UniqueConstraint(
                        condition=models.Q(("replaced_at__isnull", True)),
                        fields=("replaced_at",),
                        name="commitments_publishedserviceinfo_one_current",
                        nulls_distinct=False,
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="RefusedChange",
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
                ("request_id", models.CharField(blank=True, db_index=True, max_length=255)),
                ("actor", models.CharField(max_length=255)),
                ("zone", models.CharField(max_length=255)),
                (
                    "is_timeout",
                    models.BooleanField(
                        default=False, help_text="the time for the decision ran out"
                    ),
                ),
                ("reason", models.TextField(help_text="the answer, word for word")),
                (
                    "retry_at",
                    models.DateTimeField(
                        blank=True,
                        help_text="when Limes was told that the same request may fit",
                        null=True,
                    ),
                ),
                (
                    "asked",
                    models.JSONField(
                        help_text="what was asked: commitment, project, resource, states and amount_units each"
                    ),
                ),
                (
                    "refused",
                    models.JSONField(
                        help_text="what was refused: commitment, message with the numbers, and advice each"
                    ),
                ),
            ],
            options={
                "ordering": ("-id",),
                "indexes": [
                    models.Index(fields=["zone", "-id"], name="commitments_refused_zone_idx")
                ],
            },
        ),
        migrations.CreateModel(
            name="ServiceInfoVersion",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("singleton", models.BooleanField(default=True, editable=False, unique=True)),
                ("content_hash", models.CharField(max_length=64)),
                ("version", models.BigIntegerField()),
                (
                    "changed_at",
                    models.DateTimeField(
                        db_default=django.db.models.functions.datetime.Now(), editable=False
                    ),
                ),
            ],
            options={
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(("singleton", True)),
                        name="commitments_serviceinfoversion_singleton",
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="UsageCheck",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("singleton", models.BooleanField(default=True, editable=False, unique=True)),
                ("snapshot", models.TextField()),
                (
                    "group_fingerprint",
                    models.TextField(help_text="changes whenever a flavor group does"),
                ),
                ("checked_at", models.DateTimeField()),
                ("fully_checked_at", models.DateTimeField(blank=True, null=True)),
            ],
            options={
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(("singleton", True)),
                        name="commitments_usagecheck_singleton",
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="InstanceAssignment",
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
                ("vm_uuid", models.CharField(max_length=64)),
                (
                    "resource_type",
                    models.CharField(
                        choices=[("memory", "memory"), ("cores", "cores")], max_length=16
                    ),
                ),
                ("position", models.PositiveIntegerField(default=0)),
                (
                    "commitment",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="assignments",
                        to="commitments.commitment",
                    ),
                ),
            ],
            options={
                "ordering": ("commitment_id", "position"),
                "constraints": [
                    models.UniqueConstraint(
                        fields=("vm_uuid", "resource_type"),
                        name="commitments_instanceassignment_unique",
                    )
                ],
            },
        ),
    ]
