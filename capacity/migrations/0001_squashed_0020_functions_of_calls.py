"""The tables of all migrations that it replaces, as they were at the end of them."""

import uuid

import django.core.validators
import django.db.models.deletion
import django.db.models.functions.datetime
from django.db import migrations, models

import journal.models


class Migration(migrations.Migration):
    initial = True

    replaces = [
        ("capacity", "0001_initial"),
        ("capacity", "0002_change_tracking"),
        ("capacity", "0003_capacity_computation"),
        ("capacity", "0004_scheduling"),
        ("capacity", "0005_pipeline_change_tracking"),
        ("capacity", "0006_pipeline_create_history"),
        ("capacity", "0007_failover_users"),
        ("capacity", "0008_slot_verification"),
        ("capacity", "0009_quota_usage"),
        ("capacity", "0010_scheduling_knowledge"),
        ("capacity", "0011_known_domains_and_intents"),
        ("capacity", "0012_flavor_group_sizes"),
        ("capacity", "0013_divided_slots"),
        ("capacity", "0014_times_of_the_database"),
        ("capacity", "0015_functions_of_changes"),
        ("capacity", "0016_unfollowed_columns"),
        ("capacity", "0017_room_for_updates"),
        ("capacity", "0018_quiet_validation"),
        ("capacity", "0019_invalid_resources"),
        ("capacity", "0020_functions_of_calls"),
    ]
    dependencies = [
        ("commitments", "0001_squashed_0021_active_commitments"),
        ("hosts", "0001_squashed_0011_unfollowed_columns"),
    ]

    operations = [
        migrations.CreateModel(
            name="HostListing",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("digest", models.CharField(max_length=64, unique=True)),
                (
                    "names",
                    models.BinaryField(
                        help_text="zlib-compressed names, one per line, in row order"
                    ),
                ),
                (
                    "created_at",
                    models.DateTimeField(
                        db_default=django.db.models.functions.datetime.Now(), editable=False
                    ),
                ),
            ],
        ),
        migrations.CreateModel(
            name="CapacityComputation",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("zone", models.CharField(max_length=255, unique=True)),
                ("snapshot", models.TextField(help_text="pg_snapshot taken before the first read")),
                (
                    "snapshot_xmin",
                    models.BigIntegerField(help_text="every older transaction is in the snapshot"),
                ),
                (
                    "inputs",
                    models.TextField(
                        help_text="fingerprint of flavor groups, settings and the algorithm"
                    ),
                ),
                ("host_count", models.BigIntegerField(default=0)),
                (
                    "misplaced_vms",
                    models.BigIntegerField(
                        default=0, help_text="VMs whose own zone is not the zone of their host"
                    ),
                ),
                (
                    "ungrouped_vms",
                    models.BigIntegerField(
                        default=0, help_text="VMs whose flavor is in no flavor group"
                    ),
                ),
                ("computed_at", models.DateTimeField()),
            ],
            options={
                "ordering": ("zone",),
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(("zone", ""), _negated=True),
                        name="capacity_capacitycomputation_zone_not_empty",
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="FlavorGroup",
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
                ("name", models.CharField(max_length=255, unique=True)),
                ("ram_core_ratio_mib", models.BigIntegerField(blank=True, null=True)),
                ("ram_core_ratio_min_mib", models.BigIntegerField(blank=True, null=True)),
                ("ram_core_ratio_max_mib", models.BigIntegerField(blank=True, null=True)),
                ("is_retired", models.BooleanField(default=False)),
                (
                    "flavor_sizes",
                    models.CharField(
                        blank=True,
                        db_default="",
                        default="",
                        editable=False,
                        help_text="digest of names, memory and vCPUs of its flavors; empty when not known yet",
                        max_length=64,
                    ),
                ),
                (
                    "resized_at",
                    models.DateTimeField(
                        blank=True,
                        help_text="when its flavors last changed size, came or went",
                        null=True,
                    ),
                ),
                (
                    "largest_flavor",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="+",
                        to="hosts.flavor",
                    ),
                ),
                (
                    "smallest_flavor",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="+",
                        to="hosts.flavor",
                    ),
                ),
            ],
            options={
                "ordering": ("name",),
            },
        ),
        migrations.CreateModel(
            name="FlavorGroupMember",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("position", models.PositiveIntegerField(help_text="0 is the largest flavor")),
                (
                    "flavor",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="membership",
                        to="hosts.flavor",
                    ),
                ),
                (
                    "group",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="members",
                        to="capacity.flavorgroup",
                    ),
                ),
            ],
            options={
                "ordering": ("group", "position"),
            },
        ),
        migrations.AddField(
            model_name="flavorgroup",
            name="flavors",
            field=models.ManyToManyField(
                related_name="flavor_groups",
                through="capacity.FlavorGroupMember",
                to="hosts.flavor",
            ),
        ),
        migrations.CreateModel(
            name="FlavorGroupRule",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("group_name", models.CharField(max_length=255)),
                ("flavor_pattern", models.CharField(max_length=255)),
                (
                    "position",
                    models.PositiveIntegerField(default=0, help_text="lower is tried first"),
                ),
            ],
            options={
                "ordering": ("position", "id"),
                "constraints": [
                    models.UniqueConstraint(
                        fields=("group_name", "flavor_pattern"),
                        name="capacity_flavorgrouprule_unique",
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="FlavorGroupSettings",
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
                ("group_name", models.CharField(max_length=255, unique=True)),
                (
                    "ram_unit_gib",
                    models.PositiveBigIntegerField(
                        default=0,
                        help_text="GiB per declared unit of memory; 0 means 1",
                        validators=[django.core.validators.MaxValueValidator(8589934592)],
                    ),
                ),
                ("ram_handles_commitments", models.BooleanField(default=False)),
                ("ram_handles_dry_run", models.BooleanField(default=True)),
                ("ram_has_capacity", models.BooleanField(default=True)),
                ("ram_has_quota", models.BooleanField(default=False)),
                ("cores_handles_commitments", models.BooleanField(default=False)),
                ("cores_handles_dry_run", models.BooleanField(default=True)),
                ("cores_has_capacity", models.BooleanField(default=True)),
                ("cores_has_quota", models.BooleanField(default=False)),
                ("instances_handles_commitments", models.BooleanField(default=False)),
                ("instances_handles_dry_run", models.BooleanField(default=False)),
                ("instances_has_capacity", models.BooleanField(default=True)),
                ("instances_has_quota", models.BooleanField(default=False)),
            ],
            options={
                "verbose_name_plural": "flavor group settings",
                "ordering": ("group_name",),
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(("ram_unit_gib__lte", 8589934592)),
                        name="capacity_flavorgroupsettings_unit_bounded",
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="FlavorGroupSnapshot",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("singleton", models.BooleanField(default=True, editable=False, unique=True)),
                ("is_ready", models.BooleanField(default=False)),
                ("last_extracted_at", models.DateTimeField(blank=True, null=True)),
                ("last_content_change_at", models.DateTimeField(blank=True, null=True)),
                ("content_hash", models.CharField(blank=True, max_length=64)),
            ],
            options={
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(("singleton", True)),
                        name="capacity_flavorgroupsnapshot_singleton",
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="GroupCapacity",
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
                ("group_name", models.CharField(max_length=255)),
                ("zone", models.CharField(max_length=255)),
                ("smallest_flavor_name", models.CharField(blank=True, max_length=255)),
                ("total_memory_bytes", models.BigIntegerField(default=0)),
                ("total_vcpus", models.BigIntegerField(blank=True, null=True)),
                ("free_memory_bytes", models.BigIntegerField(default=0)),
                ("free_vcpus", models.BigIntegerField(default=0)),
                ("exclusively_free_memory_bytes", models.BigIntegerField(default=0)),
                ("exclusively_free_vcpus", models.BigIntegerField(default=0)),
                ("exclusively_free_slots", models.BigIntegerField(default=0)),
                ("running_instances", models.BigIntegerField(default=0)),
                ("running_slots", models.BigIntegerField(blank=True, null=True)),
                ("running_memory_bytes", models.BigIntegerField(default=0)),
                ("running_vcpus", models.BigIntegerField(default=0)),
                ("reserved_unused_memory_bytes", models.BigIntegerField(default=0)),
                ("reserved_unused_vcpus", models.BigIntegerField(default=0)),
                ("reserved_unused_slots", models.BigIntegerField(default=0)),
                ("committed_slots", models.BigIntegerField(default=0)),
                ("committed_memory_bytes", models.BigIntegerField(default=0)),
                ("is_ready", models.BooleanField(default=False)),
                ("ready_reason", models.CharField(blank=True, max_length=64)),
                ("ready_message", models.TextField(blank=True)),
                ("computed_at", models.DateTimeField(blank=True, null=True)),
            ],
            options={
                "verbose_name_plural": "group capacity",
                "ordering": ("group_name", "zone"),
                "constraints": [
                    models.UniqueConstraint(
                        fields=("group_name", "zone"), name="capacity_groupcapacity_unique"
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="FlavorCapacity",
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
                ("flavor_name", models.CharField(max_length=255)),
                ("total_vm_slots", models.BigIntegerField(default=0)),
                ("total_hosts", models.BigIntegerField(default=0)),
                ("placeable_vms", models.BigIntegerField(default=0)),
                ("placeable_hosts", models.BigIntegerField(default=0)),
                (
                    "group_capacity",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="flavors",
                        to="capacity.groupcapacity",
                    ),
                ),
            ],
            options={
                "verbose_name_plural": "flavor capacity",
                "ordering": ("group_capacity", "flavor_name"),
            },
        ),
        migrations.CreateModel(
            name="HostCapacity",
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
                ("zone", models.CharField(blank=True, db_index=True, max_length=255)),
                ("effective_memory_bytes", models.BigIntegerField(default=0)),
                ("effective_vcpus", models.BigIntegerField(default=0)),
                ("allocated_memory_bytes", models.BigIntegerField(default=0)),
                ("allocated_vcpus", models.BigIntegerField(default=0)),
                ("committed_memory_bytes", models.BigIntegerField(default=0)),
                ("committed_vcpus", models.BigIntegerField(default=0)),
                ("failover_memory_bytes", models.BigIntegerField(default=0)),
                ("failover_vcpus", models.BigIntegerField(default=0)),
                ("in_flight_memory_bytes", models.BigIntegerField(default=0)),
                ("in_flight_vcpus", models.BigIntegerField(default=0)),
                ("oversubscribed_since", models.DateTimeField(blank=True, null=True)),
                ("oversubscription_checked_at", models.DateTimeField(blank=True, null=True)),
                (
                    "host",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="room",
                        to="hosts.host",
                    ),
                ),
            ],
            options={
                "verbose_name_plural": "host capacity",
                "ordering": ("host__name",),
            },
        ),
        migrations.CreateModel(
            name="Pipeline",
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
                ("name", models.CharField(max_length=255, unique=True)),
                ("scheduling_domain", models.CharField(default="nova", max_length=16)),
                (
                    "kind",
                    models.CharField(
                        choices=[
                            ("filter-weigher", "filters and weighers"),
                            ("detector", "detectors"),
                        ],
                        default="filter-weigher",
                        max_length=16,
                    ),
                ),
                ("description", models.TextField(blank=True)),
                (
                    "ignore_preselection",
                    models.BooleanField(
                        default=False, help_text="replace the caller's hosts by all candidates"
                    ),
                ),
                (
                    "create_history",
                    models.BooleanField(
                        default=True, help_text="record the decisions made with it"
                    ),
                ),
                ("filters", models.JSONField(blank=True, default=list)),
                ("weighers", models.JSONField(blank=True, default=list)),
                ("detectors", models.JSONField(blank=True, default=list)),
                ("version", models.PositiveIntegerField(default=1)),
            ],
            options={
                "ordering": ("name",),
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(("kind__in", ["filter-weigher", "detector"])),
                        name="capacity_pipeline_kind_known",
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="PipelineVersion",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("version", models.PositiveIntegerField()),
                ("definition", models.JSONField()),
                ("actor", models.CharField(max_length=255)),
                (
                    "created_at",
                    models.DateTimeField(
                        db_default=django.db.models.functions.datetime.Now(), editable=False
                    ),
                ),
                (
                    "pipeline",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="versions",
                        to="capacity.pipeline",
                    ),
                ),
            ],
            options={
                "ordering": ("pipeline", "-version"),
            },
        ),
        migrations.CreateModel(
            name="ProjectQuota",
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
                ("project_id", models.CharField(max_length=64)),
                ("project_name", models.CharField(blank=True, max_length=255)),
                ("domain_id", models.CharField(blank=True, max_length=64)),
                ("domain_name", models.CharField(blank=True, max_length=255)),
                ("zone", models.CharField(max_length=255)),
                ("quota_by_resource", models.JSONField(default=dict)),
                ("generation", models.BigIntegerField(default=1)),
                ("total_usage", models.JSONField(db_default={}, default=dict)),
                ("payg_usage", models.JSONField(db_default={}, default=dict)),
                ("total_usage_summary", models.TextField(blank=True, db_default="", default="")),
                ("payg_usage_summary", models.TextField(blank=True, db_default="", default="")),
                ("limes_usage_summary", models.TextField(blank=True, db_default="", default="")),
                ("limes_quota_summary", models.TextField(blank=True, db_default="", default="")),
                ("observed_generation", models.BigIntegerField(blank=True, null=True)),
                ("last_reconcile_at", models.DateTimeField(blank=True, null=True)),
                ("last_full_reconcile_at", models.DateTimeField(blank=True, null=True)),
                (
                    "counted_xmin",
                    models.BigIntegerField(
                        db_default=0,
                        default=0,
                        editable=False,
                        help_text="oldest transaction that was not seen when the usage was counted",
                    ),
                ),
            ],
            options={
                "ordering": ("project_id", "zone"),
                "constraints": [
                    models.UniqueConstraint(
                        fields=("project_id", "zone"), name="capacity_projectquota_unique"
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("zone", ""), _negated=True),
                        name="capacity_projectquota_zone_not_empty",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="Reservation",
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
                ("uuid", models.UUIDField(default=uuid.uuid4, editable=False, unique=True)),
                (
                    "kind",
                    models.CharField(
                        choices=[
                            ("committed", "committed"),
                            ("failover", "failover"),
                            ("in_flight", "in flight"),
                        ],
                        max_length=16,
                    ),
                ),
                ("scheduling_domain", models.CharField(default="nova", max_length=16)),
                ("zone", models.CharField(blank=True, db_index=True, max_length=255)),
                ("flavor_group_name", models.CharField(blank=True, max_length=255)),
                (
                    "resource_name",
                    models.CharField(
                        blank=True, help_text="flavor the slot is placed as", max_length=255
                    ),
                ),
                ("project_id", models.CharField(blank=True, max_length=64)),
                ("domain_id", models.CharField(blank=True, max_length=64)),
                ("memory_bytes", models.BigIntegerField()),
                ("vcpus", models.BigIntegerField()),
                ("blocked_memory_bytes", models.BigIntegerField(default=0)),
                ("blocked_vcpus", models.BigIntegerField(default=0)),
                ("slot_index", models.PositiveIntegerField(blank=True, null=True)),
                (
                    "is_divided",
                    models.BooleanField(
                        db_default=False,
                        default=False,
                        help_text="cut off a larger slot, so that no flavor need be as large",
                    ),
                ),
                ("start_time", models.DateTimeField(blank=True, null=True)),
                ("end_time", models.DateTimeField(blank=True, null=True)),
                ("creator", models.CharField(blank=True, max_length=64)),
                ("creator_request_id", models.CharField(blank=True, max_length=255)),
                ("parent_generation", models.BigIntegerField(default=0)),
                ("observed_parent_generation", models.BigIntegerField(default=0)),
                ("generation", models.BigIntegerField(default=1)),
                ("is_ready", models.BooleanField(default=None, null=True)),
                (
                    "ready_reason",
                    models.CharField(
                        blank=True,
                        choices=[
                            ("ReservationActive", "active"),
                            ("PreAllocated", "pre-allocated"),
                            ("NoHostsFound", "no hosts found"),
                            ("NoHostsAvailable", "no hosts known"),
                            ("PlacementRevoked", "placement revoked"),
                            ("MissingResourceName", "missing flavor name"),
                            ("FlavorNotFound", "flavor in no group"),
                            ("InvalidResources", "invalid resources"),
                        ],
                        max_length=64,
                    ),
                ),
                ("ready_message", models.TextField(blank=True)),
                ("ready_changed_at", models.DateTimeField(blank=True, null=True)),
                (
                    "decision",
                    models.JSONField(
                        blank=True,
                        help_text="why this host: candidates, removals, runners-up",
                        null=True,
                    ),
                ),
                (
                    "vm_uuid",
                    models.CharField(
                        blank=True,
                        db_index=True,
                        help_text="VM of an in-flight placement",
                        max_length=64,
                    ),
                ),
                ("user_id", models.CharField(blank=True, max_length=64)),
                ("intent", models.CharField(blank=True, max_length=64)),
                (
                    "placement_id",
                    models.UUIDField(
                        blank=True,
                        db_index=True,
                        help_text="shared by the rows of one placement",
                        null=True,
                    ),
                ),
                (
                    "commitment",
                    models.ForeignKey(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="slots",
                        to="commitments.commitment",
                    ),
                ),
                (
                    "confirmed_host",
                    models.ForeignKey(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="reservations",
                        to="hosts.host",
                    ),
                ),
                (
                    "source_host",
                    models.ForeignKey(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="+",
                        to="hosts.host",
                    ),
                ),
                (
                    "target_host",
                    models.ForeignKey(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="targeted_reservations",
                        to="hosts.host",
                    ),
                ),
            ],
            options={
                "ordering": ("commitment_id", "slot_index", "id"),
            },
        ),
        migrations.CreateModel(
            name="ReservationAllocation",
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
                ("vm_uuid", models.CharField(db_index=True, max_length=64)),
                (
                    "state",
                    models.CharField(
                        choices=[("expected", "expected"), ("confirmed", "confirmed")],
                        max_length=16,
                    ),
                ),
                ("memory_bytes", models.BigIntegerField()),
                ("vcpus", models.BigIntegerField()),
                ("since", models.DateTimeField()),
                ("confirmed_at", models.DateTimeField(blank=True, null=True)),
                (
                    "missing_since",
                    models.DateTimeField(
                        blank=True,
                        help_text="when a VM that was seen was first listed nowhere",
                        null=True,
                    ),
                ),
                (
                    "validated_at",
                    models.DateTimeField(
                        blank=True,
                        help_text="when the scheduler last agreed to evacuate the VM here",
                        null=True,
                    ),
                ),
                (
                    "confirmed_host",
                    models.ForeignKey(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="+",
                        to="hosts.host",
                    ),
                ),
                (
                    "reservation",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="allocations",
                        to="capacity.reservation",
                    ),
                ),
                (
                    "vm_host",
                    models.ForeignKey(
                        blank=True,
                        db_index=False,
                        help_text="host the VM ran on when it joined a failover reservation",
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="+",
                        to="hosts.host",
                    ),
                ),
            ],
            options={
                "ordering": ("reservation_id", "vm_uuid"),
            },
        ),
        migrations.CreateModel(
            name="SchedulingDecision",
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
                        db_default=django.db.models.functions.datetime.Now(),
                        db_index=True,
                        editable=False,
                    ),
                ),
                ("vm_uuid", models.CharField(blank=True, max_length=64)),
                ("project_id", models.CharField(blank=True, max_length=64)),
                ("request_id", models.CharField(blank=True, max_length=255)),
                ("pipeline_name", models.CharField(max_length=255)),
                ("pipeline_version", models.PositiveIntegerField(default=0)),
                ("intent", models.CharField(blank=True, max_length=64)),
                ("zone", models.CharField(blank=True, max_length=255)),
                ("flavor_name", models.CharField(blank=True, max_length=255)),
                ("flavor_group_name", models.CharField(blank=True, max_length=255)),
                ("memory_bytes", models.BigIntegerField(default=0)),
                ("vcpus", models.BigIntegerField(default=0)),
                ("is_successful", models.BooleanField(default=False)),
                ("outcome_class", models.CharField(blank=True, max_length=32)),
                ("message", models.TextField(blank=True)),
                ("hosts_in", models.PositiveIntegerField(default=0)),
                ("hosts_out", models.PositiveIntegerField(default=0)),
                ("target_host_name", models.CharField(blank=True, max_length=255)),
                ("top_hosts", models.JSONField(default=list)),
                ("removals", models.JSONField(default=list)),
                ("masks", models.BinaryField(blank=True, null=True)),
                ("duration_microseconds", models.PositiveIntegerField(default=0)),
                (
                    "listing",
                    models.ForeignKey(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="decisions",
                        to="capacity.hostlisting",
                    ),
                ),
            ],
            options={
                "ordering": ("-id",),
            },
        ),
        migrations.CreateModel(
            name="SchedulingKnowledge",
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
                    "name",
                    models.CharField(
                        choices=[
                            ("host-utilization", "utilisation of VMware hosts"),
                            ("vmware-long-term-contended-hosts", "long-term CPU contention"),
                            ("vmware-short-term-contended-hosts", "short-term CPU contention"),
                            ("vmware-project-noisiness", "CPU of projects on hosts"),
                        ],
                        max_length=64,
                        unique=True,
                    ),
                ),
                ("facts", models.JSONField(blank=True, default=dict)),
                ("expires_at", models.DateTimeField(blank=True, null=True)),
            ],
            options={
                "verbose_name_plural": "scheduling knowledge",
                "ordering": ("name",),
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(
                            (
                                "name__in",
                                [
                                    "host-utilization",
                                    "vmware-long-term-contended-hosts",
                                    "vmware-short-term-contended-hosts",
                                    "vmware-project-noisiness",
                                ],
                            )
                        ),
                        name="capacity_schedulingknowledge_name_known",
                    )
                ],
            },
        ),
        migrations.AddConstraint(
            model_name="flavorgroupmember",
            constraint=models.UniqueConstraint(
                fields=("group", "position"), name="capacity_flavorgroupmember_position_unique"
            ),
        ),
        migrations.AddConstraint(
            model_name="flavorgroup",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    models.Q(
                        ("ram_core_ratio_max_mib__isnull", True),
                        ("ram_core_ratio_min_mib__isnull", True),
                    ),
                    models.Q(
                        ("ram_core_ratio_mib__isnull", True),
                        ("ram_core_ratio_min_mib__lt", models.F("ram_core_ratio_max_mib")),
                    ),
                    models.Q(
                        ("ram_core_ratio_mib", models.F("ram_core_ratio_min_mib")),
                        ("ram_core_ratio_min_mib", models.F("ram_core_ratio_max_mib")),
                    ),
                    _connector="OR",
                ),
                name="capacity_flavorgroup_ratio_consistent",
            ),
        ),
        migrations.AddConstraint(
            model_name="flavorcapacity",
            constraint=models.UniqueConstraint(
                fields=("group_capacity", "flavor_name"), name="capacity_flavorcapacity_unique"
            ),
        ),
        migrations.AddConstraint(
            model_name="hostcapacity",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    ("committed_memory_bytes__gte", 0),
                    ("committed_vcpus__gte", 0),
                    ("failover_memory_bytes__gte", 0),
                    ("failover_vcpus__gte", 0),
                    ("in_flight_memory_bytes__gte", 0),
                    ("in_flight_vcpus__gte", 0),
                    ("allocated_memory_bytes__gte", 0),
                    ("allocated_vcpus__gte", 0),
                ),
                name="capacity_hostcapacity_not_negative",
            ),
        ),
        migrations.AddConstraint(
            model_name="pipelineversion",
            constraint=models.UniqueConstraint(
                fields=("pipeline", "version"), name="capacity_pipelineversion_unique"
            ),
        ),
        migrations.AddIndex(
            model_name="reservation",
            index=models.Index(
                fields=["zone", "kind", "flavor_group_name"], name="capacity_reserv_zone_idx"
            ),
        ),
        migrations.AddIndex(
            model_name="reservation",
            index=models.Index(
                fields=["project_id", "flavor_group_name"], name="capacity_reserv_project_idx"
            ),
        ),
        migrations.AddConstraint(
            model_name="reservation",
            constraint=models.UniqueConstraint(
                fields=("commitment", "slot_index"), name="capacity_reservation_slot_unique"
            ),
        ),
        migrations.AddConstraint(
            model_name="reservation",
            constraint=models.UniqueConstraint(
                condition=models.Q(("kind", "in_flight")),
                fields=("vm_uuid", "target_host"),
                name="capacity_reservation_in_flight_unique",
            ),
        ),
        migrations.AddConstraint(
            model_name="reservation",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    models.Q(("kind", "in_flight"), _negated=True),
                    models.Q(
                        models.Q(("vm_uuid", ""), _negated=True),
                        ("end_time__isnull", False),
                        ("placement_id__isnull", False),
                        ("target_host__isnull", False),
                    ),
                    _connector="OR",
                ),
                name="capacity_reservation_in_flight_complete",
            ),
        ),
        migrations.AddConstraint(
            model_name="reservation",
            constraint=models.CheckConstraint(
                condition=models.Q(("kind__in", ["committed", "failover", "in_flight"])),
                name="capacity_reservation_kind_known",
            ),
        ),
        migrations.AddConstraint(
            model_name="reservation",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    ("scheduling_domain__in", ("nova", "cinder", "manila", "machines", "pods"))
                ),
                name="capacity_reservation_scheduling_domain_known",
            ),
        ),
        migrations.AddConstraint(
            model_name="reservation",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    (
                        "intent__in",
                        (
                            "",
                            "unknown",
                            "create",
                            "rebuild",
                            "resize",
                            "live_migration",
                            "evacuate",
                            "reserve_for_failover",
                            "reuse_failover_reservation",
                            "reserve_for_committed_resource",
                            "capacity_probe",
                        ),
                    )
                ),
                name="capacity_reservation_intent_known",
            ),
        ),
        migrations.AddConstraint(
            model_name="reservation",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    ("memory_bytes__gte", 0),
                    ("vcpus__gte", 0),
                    ("blocked_memory_bytes__gte", 0),
                    ("blocked_vcpus__gte", 0),
                ),
                name="capacity_reservation_not_negative",
            ),
        ),
        migrations.AddConstraint(
            model_name="reservation",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    models.Q(
                        ("kind", "committed"),
                        ("commitment__isnull", False),
                        ("slot_index__isnull", False),
                    ),
                    models.Q(
                        models.Q(("kind", "committed"), _negated=True), ("commitment__isnull", True)
                    ),
                    _connector="OR",
                ),
                name="capacity_reservation_slot_has_commitment",
            ),
        ),
        migrations.AddConstraint(
            model_name="reservation",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    ("target_host__isnull", False),
                    ("confirmed_host__isnull", False),
                    models.Q(("blocked_memory_bytes", 0), ("blocked_vcpus", 0)),
                    _connector="OR",
                ),
                name="capacity_reservation_block_has_host",
            ),
        ),
        migrations.AddIndex(
            model_name="reservationallocation",
            index=models.Index(
                condition=models.Q(("state", "expected")),
                fields=["since"],
                name="capacity_reserv_expected_idx",
            ),
        ),
        migrations.AddConstraint(
            model_name="reservationallocation",
            constraint=models.UniqueConstraint(
                fields=("reservation", "vm_host"),
                name="capacity_reservationallocation_vm_host_unique",
            ),
        ),
        migrations.AddConstraint(
            model_name="reservationallocation",
            constraint=models.UniqueConstraint(
                fields=("reservation", "vm_uuid"), name="capacity_reservationallocation_vm_unique"
            ),
        ),
        migrations.AddConstraint(
            model_name="reservationallocation",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    models.Q(
                        ("confirmed_at__isnull", False),
                        ("confirmed_host__isnull", False),
                        ("state", "confirmed"),
                    ),
                    models.Q(("confirmed_host__isnull", True), ("state", "expected")),
                    _connector="OR",
                ),
                name="capacity_reservationallocation_confirmed_has_host",
            ),
        ),
        migrations.AddConstraint(
            model_name="reservationallocation",
            constraint=models.CheckConstraint(
                condition=models.Q(("memory_bytes__gte", 0), ("vcpus__gte", 0)),
                name="capacity_reservationallocation_not_negative",
            ),
        ),
        migrations.AddConstraint(
            model_name="reservationallocation",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    ("state", "expected"), ("missing_since__isnull", True), _connector="OR"
                ),
                name="capacity_reservationallocation_missing_is_expected",
            ),
        ),
        migrations.AddIndex(
            model_name="schedulingdecision",
            index=models.Index(fields=["vm_uuid", "-id"], name="capacity_decision_vm_idx"),
        ),
        migrations.AddIndex(
            model_name="schedulingdecision",
            index=models.Index(fields=["project_id", "-id"], name="capacity_decision_project_idx"),
        ),
        migrations.AddIndex(
            model_name="schedulingdecision",
            index=models.Index(
                fields=["target_host_name", "-id"], name="capacity_decision_host_idx"
            ),
        ),
        # Rows that are often updated: room for the new version on the same page.
        migrations.RunSQL(
            "ALTER TABLE capacity_projectquota SET (fillfactor = 70)",
            "ALTER TABLE capacity_projectquota RESET (fillfactor)",
        ),
        migrations.RunSQL(
            "ALTER TABLE capacity_groupcapacity SET (fillfactor = 70)",
            "ALTER TABLE capacity_groupcapacity RESET (fillfactor)",
        ),
        migrations.RunSQL(
            "ALTER TABLE capacity_flavorcapacity SET (fillfactor = 70)",
            "ALTER TABLE capacity_flavorcapacity RESET (fillfactor)",
        ),
        migrations.RunSQL(
            "ALTER TABLE capacity_reservationallocation SET (fillfactor = 80)",
            "ALTER TABLE capacity_reservationallocation RESET (fillfactor)",
        ),
    ]
