"""The tables of all migrations that it replaces, as they were at the end of them."""

from decimal import Decimal

import django.contrib.postgres.fields
import django.contrib.postgres.indexes
import django.core.validators
import django.db.models.deletion
import django.db.models.functions.datetime
from django.db import migrations, models

import journal.models


class Migration(migrations.Migration):
    initial = True

    replaces = [
        ("hosts", "0001_initial"),
        ("hosts", "0002_change_tracking"),
        ("hosts", "0003_host_provider_uuid"),
        ("hosts", "0004_scheduling_facts"),
        ("hosts", "0005_reported_instances"),
        ("hosts", "0006_planned_host_changes"),
        ("hosts", "0007_down_since"),
        ("hosts", "0008_fill_down_since"),
        ("hosts", "0009_times_of_the_database"),
        ("hosts", "0010_members_of_server_groups"),
        ("hosts", "0011_unfollowed_columns"),
    ]
    dependencies = []

    operations = [
        migrations.CreateModel(
            name="Aggregate",
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
                ("uuid", models.CharField(max_length=64, unique=True)),
                ("name", models.CharField(max_length=255)),
                ("metadata", models.JSONField(blank=True, default=dict)),
                (
                    "host_names",
                    django.contrib.postgres.fields.ArrayField(
                        base_field=models.CharField(max_length=255),
                        blank=True,
                        default=list,
                        size=None,
                    ),
                ),
            ],
            options={
                "ordering": ("name", "id"),
            },
        ),
        migrations.CreateModel(
            name="Domain",
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
                ("openstack_id", models.CharField(max_length=64, unique=True)),
                ("name", models.CharField(max_length=255)),
                ("is_enabled", models.BooleanField(default=True)),
            ],
            options={
                "ordering": ("name", "id"),
            },
        ),
        migrations.CreateModel(
            name="Image",
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
                ("openstack_id", models.CharField(max_length=64, unique=True)),
                ("name", models.CharField(blank=True, max_length=255)),
                ("os_type", models.CharField(default="unknown", max_length=255)),
                ("properties", models.JSONField(blank=True, default=dict)),
            ],
            options={
                "ordering": ("name", "id"),
            },
        ),
        migrations.CreateModel(
            name="Project",
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
                ("openstack_id", models.CharField(max_length=64, unique=True)),
                ("name", models.CharField(max_length=255)),
                ("domain_id", models.CharField(blank=True, db_index=True, max_length=64)),
                ("parent_id", models.CharField(blank=True, max_length=64)),
                ("is_enabled", models.BooleanField(default=True)),
            ],
            options={
                "ordering": ("name", "id"),
            },
        ),
        migrations.CreateModel(
            name="Flavor",
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
                ("openstack_id", models.CharField(max_length=255, unique=True)),
                ("name", models.CharField(max_length=255, unique=True)),
                ("vcpus", models.PositiveIntegerField()),
                ("memory_bytes", models.BigIntegerField()),
                ("disk_gib", models.PositiveIntegerField(default=0)),
                ("ephemeral_gib", models.PositiveIntegerField(default=0)),
                ("is_public", models.BooleanField(default=True)),
                ("extra_specs", models.JSONField(blank=True, default=dict)),
            ],
            options={
                "ordering": ("name",),
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(("memory_bytes__gte", 0)),
                        name="hosts_flavor_memory_not_negative",
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="Host",
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
                ("name", models.CharField(max_length=255, unique=True)),
                ("openstack_id", models.CharField(db_index=True, max_length=64)),
                ("service_host", models.CharField(blank=True, max_length=255)),
                ("service_id", models.CharField(blank=True, max_length=64)),
                ("zone", models.CharField(blank=True, db_index=True, max_length=255)),
                ("hypervisor_type", models.CharField(blank=True, max_length=64)),
                ("cpu_arch", models.CharField(blank=True, max_length=32)),
                (
                    "state",
                    models.CharField(
                        choices=[("up", "up"), ("down", "down"), ("unknown", "unknown")],
                        default="unknown",
                        max_length=16,
                    ),
                ),
                (
                    "status",
                    models.CharField(
                        choices=[("enabled", "enabled"), ("disabled", "disabled")],
                        default="disabled",
                        max_length=16,
                    ),
                ),
                ("disabled_reason", models.TextField(blank=True)),
                (
                    "maintenance",
                    models.CharField(
                        blank=True,
                        choices=[
                            ("", "none"),
                            ("manual", "manual"),
                            ("auto", "auto"),
                            ("ha", "high availability"),
                            ("termination", "termination"),
                        ],
                        default="",
                        max_length=16,
                    ),
                ),
                ("down_since", models.DateTimeField(blank=True, editable=False, null=True)),
                ("terminating_since", models.DateTimeField(blank=True, editable=False, null=True)),
                ("total_vcpus", models.BigIntegerField(default=0)),
                ("total_memory_bytes", models.BigIntegerField(default=0)),
                ("total_disk_gib", models.BigIntegerField(default=0)),
                ("reserved_vcpus", models.BigIntegerField(default=0)),
                ("reserved_memory_bytes", models.BigIntegerField(default=0)),
                ("reserved_disk_gib", models.BigIntegerField(default=0)),
                (
                    "vcpus_ratio",
                    models.DecimalField(
                        decimal_places=4,
                        default=Decimal("1"),
                        max_digits=8,
                        validators=[django.core.validators.MinValueValidator(Decimal("0.0001"))],
                    ),
                ),
                (
                    "memory_ratio",
                    models.DecimalField(
                        decimal_places=4,
                        default=Decimal("1"),
                        max_digits=8,
                        validators=[django.core.validators.MinValueValidator(Decimal("0.0001"))],
                    ),
                ),
                (
                    "disk_ratio",
                    models.DecimalField(
                        decimal_places=4,
                        default=Decimal("1"),
                        max_digits=8,
                        validators=[django.core.validators.MinValueValidator(Decimal("0.0001"))],
                    ),
                ),
                ("effective_vcpus", models.BigIntegerField(default=0)),
                ("effective_memory_bytes", models.BigIntegerField(default=0)),
                ("effective_disk_gib", models.BigIntegerField(default=0)),
                (
                    "traits",
                    django.contrib.postgres.fields.ArrayField(
                        base_field=models.CharField(max_length=255),
                        blank=True,
                        default=list,
                        size=None,
                    ),
                ),
                (
                    "aggregate_uuids",
                    django.contrib.postgres.fields.ArrayField(
                        base_field=models.CharField(max_length=64),
                        blank=True,
                        default=list,
                        size=None,
                    ),
                ),
                (
                    "allowed_projects",
                    django.contrib.postgres.fields.ArrayField(
                        base_field=models.CharField(max_length=64),
                        blank=True,
                        default=list,
                        size=None,
                    ),
                ),
                (
                    "provider_uuid",
                    models.CharField(
                        blank=True, help_text="root resource provider in Placement", max_length=64
                    ),
                ),
                ("provider_inventories", models.JSONField(blank=True, default=dict)),
                (
                    "provider_traits",
                    django.contrib.postgres.fields.ArrayField(
                        base_field=models.CharField(max_length=255),
                        blank=True,
                        default=list,
                        size=None,
                    ),
                ),
                ("nested_providers", models.JSONField(blank=True, default=list)),
                (
                    "building_block",
                    models.CharField(
                        blank=True, db_default="", help_text="failure domain, rack", max_length=255
                    ),
                ),
                (
                    "custom_traits",
                    django.contrib.postgres.fields.ArrayField(
                        base_field=models.CharField(max_length=255),
                        blank=True,
                        db_default=[],
                        default=list,
                        size=None,
                    ),
                ),
                (
                    "conditions",
                    models.JSONField(
                        blank=True,
                        db_default={},
                        default=dict,
                        help_text="condition type to status, as the host reports them",
                    ),
                ),
                (
                    "domain_capabilities",
                    models.JSONField(
                        blank=True,
                        db_default={},
                        default=dict,
                        help_text="features, CPU modes and devices for live migration",
                    ),
                ),
                (
                    "reported_instances",
                    models.JSONField(
                        blank=True,
                        help_text="VMs as the host reports them: id, name, active; empty if it reports none at all",
                        null=True,
                    ),
                ),
                ("generation", models.BigIntegerField(default=1)),
            ],
            options={
                "ordering": ("name",),
                "indexes": [models.Index(fields=["zone", "name"], name="hosts_host_zone_name_idx")],
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(
                            ("effective_vcpus__gte", 0),
                            ("effective_memory_bytes__gte", 0),
                            ("effective_disk_gib__gte", 0),
                        ),
                        name="hosts_host_effective_not_negative",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("state__in", ["up", "down", "unknown"])),
                        name="hosts_host_state_known",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("status__in", ["enabled", "disabled"])),
                        name="hosts_host_status_known",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="Region",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("singleton", models.BooleanField(default=True, editable=False, unique=True)),
                ("name", models.CharField(blank=True, max_length=255)),
                ("taken_at", models.CharField(blank=True, max_length=64)),
                ("source", models.TextField(blank=True)),
                ("versions", models.JSONField(default=dict)),
            ],
            options={
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(("singleton", True)), name="hosts_region_singleton"
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="ServerGroup",
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
                ("openstack_id", models.CharField(max_length=64, unique=True)),
                ("name", models.CharField(blank=True, max_length=255)),
                ("policy", models.CharField(blank=True, max_length=64)),
                ("rules", models.JSONField(blank=True, default=dict)),
                (
                    "members",
                    django.contrib.postgres.fields.ArrayField(
                        base_field=models.CharField(max_length=64),
                        blank=True,
                        default=list,
                        size=None,
                    ),
                ),
                ("project_id", models.CharField(blank=True, max_length=64)),
            ],
            options={
                "ordering": ("name", "id"),
                "indexes": [
                    django.contrib.postgres.indexes.GinIndex(
                        fields=["members"], name="hosts_servergroup_members"
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="Instance",
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
                ("openstack_id", models.CharField(max_length=64, unique=True)),
                ("name", models.CharField(blank=True, max_length=255)),
                ("project_id", models.CharField(db_index=True, max_length=64)),
                ("user_id", models.CharField(blank=True, max_length=64)),
                ("flavor_name", models.CharField(db_index=True, max_length=255)),
                ("vcpus", models.PositiveIntegerField()),
                ("memory_bytes", models.BigIntegerField()),
                ("disk_gib", models.PositiveIntegerField(default=0)),
                ("flavor_extra_specs", models.JSONField(blank=True, default=dict)),
                ("host_name", models.CharField(blank=True, max_length=255)),
                ("zone", models.CharField(blank=True, max_length=255)),
                ("status", models.CharField(db_index=True, max_length=32)),
                ("vm_state", models.CharField(blank=True, max_length=32)),
                ("task_state", models.CharField(blank=True, max_length=64)),
                ("power_state", models.IntegerField(default=0)),
                ("os_type", models.CharField(default="unknown", max_length=255)),
                ("image_id", models.CharField(blank=True, max_length=64)),
                ("launched_at", models.DateTimeField(blank=True, null=True)),
                ("nova_created_at", models.DateTimeField(blank=True, null=True)),
                ("nova_updated_at", models.DateTimeField(blank=True, null=True)),
                ("metadata", models.JSONField(blank=True, default=dict)),
                (
                    "host",
                    models.ForeignKey(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="instances",
                        to="hosts.host",
                    ),
                ),
            ],
            options={
                "verbose_name": "VM",
                "verbose_name_plural": "VMs",
                "ordering": ("name", "id"),
                "indexes": [
                    models.Index(fields=["project_id", "zone"], name="hosts_instance_project_idx")
                ],
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(("memory_bytes__gte", 0)),
                        name="hosts_instance_memory_not_negative",
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="PlannedHostChange",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                (
                    "edit",
                    models.CharField(
                        choices=[("add", "hosts will be added"), ("drain", "host will be drained")],
                        max_length=8,
                    ),
                ),
                ("at", models.DateTimeField(db_index=True, help_text="when it happens, UTC")),
                (
                    "host_count",
                    models.PositiveIntegerField(default=1, help_text="new hosts; 1 for a drain"),
                ),
                ("note", models.TextField(blank=True)),
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
                    "host",
                    models.ForeignKey(
                        help_text="the host that is drained, or the host that the new ones are like",
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="planned_changes",
                        to="hosts.host",
                    ),
                ),
            ],
            options={
                "verbose_name": "planned host change",
                "ordering": ("at", "id"),
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(("edit__in", ["add", "drain"])),
                        name="hosts_plannedhostchange_known",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(("edit", "add"), ("host_count__range", (1, 1000))),
                            models.Q(("edit", "drain"), ("host_count", 1)),
                            _connector="OR",
                        ),
                        name="hosts_plannedhostchange_count",
                        violation_error_message="host count: 1 to 1000 for new hosts, 1 for a drain",
                    ),
                    models.UniqueConstraint(
                        condition=models.Q(("edit", "drain")),
                        fields=("host",),
                        name="hosts_plannedhostchange_one_drain",
                        violation_error_message="this host has a planned drain already",
                    ),
                ],
            },
        ),
    ]
