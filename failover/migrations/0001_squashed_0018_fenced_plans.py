"""The tables of all migrations that it replaces, as they were at the end of them."""

import django.contrib.postgres.fields
import django.db.models.deletion
import django.db.models.functions.datetime
from django.db import migrations, models

import journal.models


class Migration(migrations.Migration):
    initial = True

    replaces = [
        ("failover", "0001_initial"),
        ("failover", "0002_change_tracking"),
        ("failover", "0003_reservations_and_runs"),
        ("failover", "0004_change_tracking_of_reservations"),
        ("failover", "0005_drills_and_evacuations"),
        ("failover", "0006_enforce_rules"),
        ("failover", "0007_follow_hosts"),
        ("failover", "0008_due_vms"),
        ("failover", "0009_index_of_user_hosts"),
        ("failover", "0010_check_rules_by_arrays"),
        ("failover", "0011_lock_slots_before_users"),
        ("failover", "0012_steady_plans"),
        ("failover", "0013_times_of_the_database"),
        ("failover", "0014_functions_of_one_vm"),
        ("failover", "0015_columns_of_every_write"),
        ("failover", "0016_room_for_updates"),
        ("failover", "0017_vms_that_come_back"),
        ("failover", "0018_fenced_plans"),
    ]
    dependencies = [
        ("capacity", "0001_squashed_0020_functions_of_calls"),
        ("hosts", "0001_squashed_0011_unfollowed_columns"),
    ]

    operations = [
        migrations.CreateModel(
            name="DueVM",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("vm_uuid", models.CharField(max_length=64)),
                (
                    "noted_at",
                    models.DateTimeField(db_default=django.db.models.functions.datetime.Now()),
                ),
            ],
            options={
                "verbose_name": "due VM",
                "ordering": ("id",),
            },
        ),
        migrations.CreateModel(
            name="FailoverZone",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("zone", models.CharField(max_length=255, unique=True)),
                ("run_count", models.PositiveIntegerField(default=0)),
                (
                    "vm_count",
                    models.PositiveIntegerField(
                        default=0, help_text="VMs listed at the last full run"
                    ),
                ),
                ("next_run_at", models.DateTimeField(blank=True, null=True)),
                ("brake_reason", models.CharField(blank=True, max_length=64)),
                ("brake_facts", models.JSONField(default=dict)),
                ("braked_at", models.DateTimeField(blank=True, null=True)),
                (
                    "confirmed_at",
                    models.DateTimeField(
                        blank=True,
                        help_text="when an operator allowed the next run to remove",
                        null=True,
                    ),
                ),
                ("confirmed_by", models.CharField(blank=True, max_length=255)),
            ],
            options={
                "ordering": ("zone",),
            },
        ),
        migrations.CreateModel(
            name="CoverageAccount",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("zone", models.CharField(max_length=255, unique=True)),
                ("accounted_at", models.DateTimeField()),
                ("owed_vms", models.BigIntegerField(default=0)),
                ("uncovered_vms", models.BigIntegerField(default=0)),
                ("owed_vm_seconds", models.BigIntegerField(default=0)),
                ("uncovered_vm_seconds", models.BigIntegerField(default=0)),
                ("reserved_memory_bytes", models.BigIntegerField(default=0)),
                (
                    "vm_memory_bytes",
                    models.BigIntegerField(default=0, help_text="memory of the VMs owed to"),
                ),
                ("lower_bound_bytes", models.BigIntegerField(default=0)),
                ("bounded_at", models.DateTimeField(blank=True, null=True)),
            ],
            options={
                "ordering": ("zone",),
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(
                            ("uncovered_vm_seconds__lte", models.F("owed_vm_seconds")),
                            ("uncovered_vms__lte", models.F("owed_vms")),
                            ("uncovered_vm_seconds__gte", 0),
                        ),
                        name="failover_coverageaccount_uncovered_is_part",
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="EvacuationPlan",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("zone", models.CharField(max_length=255)),
                (
                    "state",
                    models.CharField(
                        choices=[("open", "under way"), ("done", "done")],
                        default="open",
                        max_length=16,
                    ),
                ),
                (
                    "failed_hosts",
                    django.contrib.postgres.fields.ArrayField(
                        base_field=models.CharField(max_length=255), default=list, size=None
                    ),
                ),
                ("started_at", models.DateTimeField()),
                ("changed_at", models.DateTimeField()),
                ("finished_at", models.DateTimeField(blank=True, null=True)),
                ("request_id", models.CharField(blank=True, max_length=255)),
            ],
            options={
                "ordering": ("-id",),
                "constraints": [
                    models.UniqueConstraint(
                        condition=models.Q(("state", "open")),
                        fields=("zone",),
                        name="failover_evacuationplan_one_open",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(("finished_at__isnull", True), ("state", "open")),
                            models.Q(("finished_at__isnull", False), ("state", "done")),
                            _connector="OR",
                        ),
                        name="failover_evacuationplan_done_has_end",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="FailoverEvent",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("happened_at", models.DateTimeField()),
                (
                    "reason",
                    models.CharField(
                        choices=[
                            ("ValidationPassed", "validation passed"),
                            ("ValidationFailed", "validation failed"),
                            ("SlotCreated", "created"),
                            ("SlotReused", "joined"),
                            ("SlotReleased", "left or released"),
                            ("SafeguardKept", "kept by the safeguard"),
                            ("CoverageLost", "coverage lost"),
                            ("CoverageRestored", "coverage restored"),
                            ("RemovalHalted", "removal halted"),
                        ],
                        max_length=32,
                    ),
                ),
                ("is_warning", models.BooleanField(default=False)),
                ("zone", models.CharField(blank=True, max_length=255)),
                ("reservation_name", models.CharField(blank=True, max_length=63)),
                ("host_name", models.CharField(blank=True, max_length=255)),
                ("vm_uuid", models.CharField(blank=True, max_length=64)),
                ("message", models.TextField(blank=True)),
                ("facts", models.JSONField(default=dict)),
                ("request_id", models.CharField(blank=True, max_length=255)),
            ],
            options={
                "ordering": ("-id",),
                "indexes": [
                    models.Index(
                        fields=["reservation_name", "-id"], name="failover_event_name_idx"
                    ),
                    models.Index(fields=["zone", "reason", "-id"], name="failover_event_zone_idx"),
                    models.Index(fields=["happened_at"], name="failover_event_time_idx"),
                ],
            },
        ),
        migrations.CreateModel(
            name="FailoverPolicy",
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
                ("flavor_pattern", models.CharField(max_length=255, unique=True)),
                ("required_count", models.PositiveIntegerField()),
                ("position", models.PositiveIntegerField(default=0, help_text="place in the list")),
            ],
            options={
                "verbose_name_plural": "failover policies",
                "ordering": ("position", "id"),
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(("flavor_pattern", ""), _negated=True),
                        name="failover_failoverpolicy_pattern_not_empty",
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="FailoverRun",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("zone", models.CharField(blank=True, max_length=255)),
                (
                    "number",
                    models.PositiveIntegerField(default=0, help_text="counts the runs of the zone"),
                ),
                ("started_at", models.DateTimeField()),
                ("finished_at", models.DateTimeField(blank=True, null=True)),
                (
                    "outcome",
                    models.CharField(
                        choices=[
                            ("running", "running"),
                            ("done", "done"),
                            ("halted", "halted by the brake"),
                            ("skipped", "skipped: another run had the zone"),
                            ("failed", "failed"),
                        ],
                        default="running",
                        max_length=16,
                    ),
                ),
                ("is_dry_run", models.BooleanField(default=False)),
                ("request_id", models.CharField(blank=True, max_length=255)),
                ("counts", models.JSONField(default=dict)),
                ("error_code", models.CharField(blank=True, max_length=64)),
                ("message", models.TextField(blank=True)),
            ],
            options={
                "ordering": ("-id",),
                "indexes": [models.Index(fields=["zone", "-id"], name="failover_run_zone_idx")],
            },
        ),
        migrations.CreateModel(
            name="FailoverDecision",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("vm_uuid", models.CharField(max_length=64, unique=True)),
                ("zone", models.CharField(blank=True, db_index=True, max_length=255)),
                ("required_count", models.PositiveIntegerField()),
                ("current_count", models.PositiveIntegerField()),
                (
                    "reason",
                    models.CharField(
                        choices=[
                            ("waiting", "not handled yet"),
                            ("no_resources", "the VM has no memory or no vCPUs"),
                            ("no_compatible_host", "no host may take the VM"),
                            ("no_eligible_host", "no host left by the rules"),
                            ("no_room", "no host has room"),
                            ("scheduler_failed", "the scheduler could not judge"),
                            ("plan_spoiled", "others took the room meanwhile"),
                        ],
                        db_index=True,
                        default="waiting",
                        max_length=32,
                    ),
                ),
                (
                    "facts",
                    models.JSONField(
                        default=dict, help_text="counts of hosts by what excluded them"
                    ),
                ),
                ("since", models.DateTimeField(help_text="uncovered since")),
                ("tried_at", models.DateTimeField(blank=True, null=True)),
                (
                    "run",
                    models.ForeignKey(
                        db_index=False,
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="+",
                        to="failover.failoverrun",
                    ),
                ),
            ],
            options={
                "ordering": ("zone", "since", "id"),
            },
        ),
        migrations.CreateModel(
            name="FailureDrill",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("zone", models.CharField(blank=True, max_length=255)),
                (
                    "scope",
                    models.CharField(
                        choices=[
                            ("host", "every single host"),
                            ("rack", "every single rack"),
                            ("pair", "every interacting pair of hosts"),
                        ],
                        max_length=16,
                    ),
                ),
                ("started_at", models.DateTimeField()),
                ("finished_at", models.DateTimeField()),
                ("request_id", models.CharField(blank=True, max_length=255)),
                ("cases", models.BigIntegerField(help_text="failures looked at")),
                (
                    "simulated",
                    models.BigIntegerField(help_text="those not proven harmless by the rules"),
                ),
                ("vms", models.BigIntegerField(default=0, help_text="VMs that slots are owed to")),
                (
                    "unprotected_vms",
                    models.BigIntegerField(
                        help_text="VMs that at least one failure leaves without a slot"
                    ),
                ),
                ("worst", models.JSONField(default=list)),
                ("hosts", models.JSONField(default=list)),
            ],
            options={
                "ordering": ("-id",),
                "indexes": [
                    models.Index(fields=["zone", "scope", "-id"], name="failover_drill_zone_idx")
                ],
            },
        ),
        migrations.CreateModel(
            name="ShadowPlan",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("zone", models.CharField(max_length=255)),
                (
                    "state",
                    models.CharField(
                        choices=[
                            ("proposed", "proposed"),
                            ("running", "being carried out"),
                            ("done", "done"),
                            ("not_worth", "saves too little"),
                            ("obsolete", "replaced by a newer one"),
                        ],
                        max_length=16,
                    ),
                ),
                ("computed_at", models.DateTimeField()),
                ("request_id", models.CharField(blank=True, max_length=255)),
                (
                    "reserved_memory_bytes",
                    models.BigIntegerField(help_text="by the slots as they are"),
                ),
                ("shadow_memory_bytes", models.BigIntegerField(help_text="by the shadow plan")),
                ("lower_bound_bytes", models.BigIntegerField(default=0)),
                ("vm_memory_bytes", models.BigIntegerField(default=0)),
                ("slots", models.JSONField(default=list, help_text="the slots of the shadow plan")),
                ("steps_done", models.BigIntegerField(default=0)),
            ],
            options={
                "ordering": ("-id",),
                "indexes": [models.Index(fields=["zone", "-id"], name="failover_shadow_zone_idx")],
                "constraints": [
                    models.UniqueConstraint(
                        condition=models.Q(("state__in", ["proposed", "running"])),
                        fields=("zone",),
                        name="failover_shadowplan_one_live",
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="EvacuationMove",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("vm_uuid", models.CharField(max_length=64)),
                (
                    "state",
                    models.CharField(
                        choices=[
                            ("planned", "planned"),
                            ("started", "asked for by Nova"),
                            ("arrived", "arrived on its slot"),
                            ("elsewhere", "went elsewhere"),
                            ("unprotected", "no slot for it"),
                            ("dropped", "not needed any more"),
                        ],
                        max_length=16,
                    ),
                ),
                ("reservation_name", models.CharField(blank=True, max_length=63)),
                ("is_private", models.BooleanField(default=True)),
                (
                    "reason",
                    models.CharField(blank=True, help_text="why there is no slot", max_length=32),
                ),
                ("changed_at", models.DateTimeField()),
                (
                    "from_host",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="+",
                        to="hosts.host",
                    ),
                ),
                (
                    "reservation",
                    models.ForeignKey(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="+",
                        to="capacity.reservation",
                    ),
                ),
                (
                    "target_host",
                    models.ForeignKey(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="+",
                        to="hosts.host",
                    ),
                ),
                (
                    "plan",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="moves",
                        to="failover.evacuationplan",
                    ),
                ),
            ],
            options={
                "ordering": ("plan", "vm_uuid"),
                "constraints": [
                    models.UniqueConstraint(
                        fields=("plan", "vm_uuid"), name="failover_evacuationmove_vm_unique"
                    ),
                    models.UniqueConstraint(
                        condition=models.Q(("state__in", ("planned", "started"))),
                        fields=("vm_uuid",),
                        name="failover_evacuationmove_vm_pending_once",
                    ),
                    models.UniqueConstraint(
                        condition=models.Q(("state__in", ("planned", "started"))),
                        fields=("reservation",),
                        name="failover_evacuationmove_slot_once",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(("state__in", ("planned", "started")), _negated=True),
                            ("target_host__isnull", False),
                            _connector="OR",
                        ),
                        name="failover_evacuationmove_pending_has_target",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="FailoverCooldown",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("vm_uuid", models.CharField(max_length=64)),
                ("failures", models.PositiveIntegerField(default=1)),
                ("until", models.DateTimeField(db_index=True)),
                (
                    "host",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="+",
                        to="hosts.host",
                    ),
                ),
            ],
            options={
                "constraints": [
                    models.UniqueConstraint(
                        fields=("vm_uuid", "host"), name="failover_failovercooldown_unique"
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="FailoverReservation",
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
                ("name", models.CharField(max_length=63, unique=True)),
                (
                    "state",
                    models.CharField(
                        choices=[
                            ("active", "active"),
                            ("invalid", "invalid"),
                            ("consuming", "planned for an evacuation"),
                            ("retired", "retired"),
                        ],
                        db_default="active",
                        default="active",
                        max_length=16,
                    ),
                ),
                ("last_changed_at", models.DateTimeField(blank=True, null=True)),
                (
                    "acknowledged_at",
                    models.DateTimeField(
                        blank=True,
                        help_text="when the scheduler agreed after the last change",
                        null=True,
                    ),
                ),
                ("next_validation_at", models.DateTimeField(blank=True, null=True)),
                ("version", models.BigIntegerField(db_default=1, default=1)),
                (
                    "reservation",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="failover",
                        to="capacity.reservation",
                    ),
                ),
            ],
            options={
                "ordering": ("name",),
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(
                            ("state__in", ["active", "invalid", "consuming", "retired"])
                        ),
                        name="failover_failoverreservation_state_known",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("name", ""), _negated=True),
                        name="failover_failoverreservation_name_not_empty",
                    ),
                ],
            },
        ),
        # Rows that are often updated: room for the new version on the same page.
        migrations.RunSQL(
            "ALTER TABLE failover_failoverdecision SET (fillfactor = 70)",
            "ALTER TABLE failover_failoverdecision RESET (fillfactor)",
        ),
        migrations.RunSQL(
            "ALTER TABLE failover_failoverreservation SET (fillfactor = 70)",
            "ALTER TABLE failover_failoverreservation RESET (fillfactor)",
        ),
        # Which reservations have a user on a host: asked for one VM at a time. Only failover has such rows.
        migrations.RunSQL(
            "CREATE INDEX failover_user_hosts_idx ON capacity_reservationallocation (vm_host_id)"
            " INCLUDE (reservation_id) WHERE vm_host_id IS NOT NULL",
            "DROP INDEX failover_user_hosts_idx",
        ),
    ]
