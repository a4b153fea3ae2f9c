"""The tables of all migrations that it replaces, as they were at the end of them."""

import django.contrib.postgres.fields
import django.db.models.deletion
import django.db.models.functions.datetime
from django.db import migrations, models

import journal.models
import placement.models.names

CREATE_EVENTS = """
CREATE SEQUENCE placement_allocation_event_id;
CREATE TABLE placement_allocation_event (
    id bigint NOT NULL DEFAULT nextval('placement_allocation_event_id'),
    created_at timestamptz NOT NULL DEFAULT statement_timestamp(),
    consumer_uuid uuid NOT NULL,
    provider_uuid uuid NOT NULL,
    resource_class varchar(255) NOT NULL,
    amount bigint NOT NULL,
    previous bigint NOT NULL,
    actor varchar(255) NOT NULL,
    request_id varchar(255) NOT NULL,
    PRIMARY KEY (id, created_at)
) PARTITION BY RANGE (created_at);
CREATE INDEX placement_event_consumer_idx ON placement_allocation_event (consumer_uuid, id);
CREATE INDEX placement_event_provider_idx ON placement_allocation_event (provider_uuid, id);
CREATE TABLE placement_allocation_event_rest PARTITION OF placement_allocation_event DEFAULT;
ALTER SEQUENCE placement_allocation_event_id OWNED BY placement_allocation_event.id;
"""
CHECK_AT_ONCE = """
DO $$
DECLARE
    v_key record;
BEGIN
    FOR v_key IN
        SELECT conrelid::regclass AS place, conname FROM pg_constraint
         WHERE contype = 'f' AND conrelid IN ('placement_allocation'::regclass,
                                              'placement_consumer'::regclass)
    LOOP
        EXECUTE format('ALTER TABLE %s ALTER CONSTRAINT %I DEFERRABLE INITIALLY IMMEDIATE',
                       v_key.place, v_key.conname);
    END LOOP;
END
$$
"""


def check_keys_at_once(apps, schema_editor):
    schema_editor.deferred_sql.append(CHECK_AT_ONCE)  # foreign keys are made at the end, too


class Migration(migrations.Migration):
    initial = True

    replaces = [
        ("placement", "0001_class_sequence"),
        ("placement", "0002_initial"),
        ("placement", "0003_allocation_inventory"),
        ("placement", "0004_allocation_event"),
        ("placement", "0005_allocation_functions"),
        ("placement", "0006_host_facts"),
        ("placement", "0007_steady_plans"),
        ("placement", "0008_project_usage"),
        ("placement", "0009_fill_project_usage"),
        ("placement", "0010_changes_function"),
        ("placement", "0011_bounded_lock"),
    ]
    dependencies = []

    operations = [
        migrations.RunSQL(
            "CREATE SEQUENCE placement_resource_class_custom AS integer START 10000",
            "DROP SEQUENCE placement_resource_class_custom",
        ),
        migrations.CreateModel(
            name="Aggregate",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("uuid", models.UUIDField(unique=True)),
                ("name", models.CharField(blank=True, db_default="", max_length=255)),
                (
                    "created_at",
                    models.DateTimeField(db_default=django.db.models.functions.datetime.Now()),
                ),
            ],
            options={
                "db_table": "placement_aggregate",
                "ordering": ("id",),
            },
        ),
        migrations.CreateModel(
            name="Change",
            fields=[
                ("seq", models.BigAutoField(primary_key=True, serialize=False)),
                (
                    "xid",
                    models.BigIntegerField(
                        db_default=journal.models.CurrentTransactionID(), db_index=True
                    ),
                ),
                ("root_id", models.BigIntegerField()),
                (
                    "kind",
                    models.SmallIntegerField(
                        choices=[
                            (1, "allocated amounts only"),
                            (2, "providers, inventories, traits or aggregates"),
                            (3, "names of traits or resource classes"),
                        ]
                    ),
                ),
                (
                    "created_at",
                    models.DateTimeField(db_default=django.db.models.functions.datetime.Now()),
                ),
            ],
            options={
                "db_table": "placement_change",
                "ordering": ("seq",),
            },
        ),
        migrations.CreateModel(
            name="ConsumerProject",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("external_id", models.CharField(max_length=255, unique=True)),
            ],
            options={
                "db_table": "placement_project",
                "ordering": ("external_id",),
            },
        ),
        migrations.CreateModel(
            name="ConsumerType",
            fields=[
                ("id", models.SmallAutoField(primary_key=True, serialize=False)),
                ("name", models.CharField(max_length=255, unique=True)),
            ],
            options={
                "db_table": "placement_consumer_type",
                "ordering": ("name",),
            },
        ),
        migrations.CreateModel(
            name="ConsumerUser",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("external_id", models.CharField(max_length=255, unique=True)),
            ],
            options={
                "db_table": "placement_user",
                "ordering": ("external_id",),
            },
        ),
        migrations.CreateModel(
            name="ResourceClass",
            fields=[
                (
                    "id",
                    models.IntegerField(
                        db_default=placement.models.names.NextCustomClassID(),
                        primary_key=True,
                        serialize=False,
                    ),
                ),
                ("name", models.CharField(max_length=255, unique=True)),
                (
                    "created_at",
                    models.DateTimeField(db_default=django.db.models.functions.datetime.Now()),
                ),
                (
                    "updated_at",
                    models.DateTimeField(db_default=django.db.models.functions.datetime.Now()),
                ),
            ],
            options={
                "verbose_name_plural": "resource classes",
                "db_table": "placement_resource_class",
                "ordering": ("id",),
            },
        ),
        migrations.CreateModel(
            name="Trait",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("name", models.CharField(max_length=255, unique=True)),
                (
                    "created_at",
                    models.DateTimeField(db_default=django.db.models.functions.datetime.Now()),
                ),
            ],
            options={
                "db_table": "placement_trait",
                "ordering": ("id",),
            },
        ),
        migrations.SeparateDatabaseAndState(
            database_operations=[
                migrations.RunSQL(CREATE_EVENTS, "DROP TABLE placement_allocation_event")
            ],
            state_operations=[
                migrations.CreateModel(
                    name="AllocationEvent",
                    fields=[
                        (
                            "id",
                            models.BigAutoField(
                                auto_created=True,
                                primary_key=True,
                                serialize=False,
                                verbose_name="ID",
                            ),
                        ),
                        (
                            "created_at",
                            models.DateTimeField(
                                db_default=django.db.models.functions.datetime.Now()
                            ),
                        ),
                        ("consumer_uuid", models.UUIDField()),
                        ("provider_uuid", models.UUIDField()),
                        ("resource_class", models.CharField(max_length=255)),
                        ("amount", models.BigIntegerField()),
                        ("previous", models.BigIntegerField()),
                        ("actor", models.CharField(max_length=255)),
                        ("request_id", models.CharField(max_length=255)),
                    ],
                    options={
                        "db_table": "placement_allocation_event",
                        "ordering": ("-id",),
                        "indexes": [
                            models.Index(
                                fields=["consumer_uuid", "id"], name="placement_event_consumer_idx"
                            ),
                            models.Index(
                                fields=["provider_uuid", "id"], name="placement_event_provider_idx"
                            ),
                        ],
                    },
                ),
            ],
        ),
        migrations.CreateModel(
            name="Consumer",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("uuid", models.UUIDField(unique=True)),
                ("generation", models.IntegerField(db_default=0)),
                (
                    "created_at",
                    models.DateTimeField(db_default=django.db.models.functions.datetime.Now()),
                ),
                (
                    "updated_at",
                    models.DateTimeField(db_default=django.db.models.functions.datetime.Now()),
                ),
                (
                    "project",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.PROTECT,
                        to="placement.consumerproject",
                    ),
                ),
                (
                    "type",
                    models.ForeignKey(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        to="placement.consumertype",
                    ),
                ),
                (
                    "user",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT, to="placement.consumeruser"
                    ),
                ),
            ],
            options={
                "db_table": "placement_consumer",
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
                ("used", models.BigIntegerField()),
                (
                    "project",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="+",
                        to="placement.consumerproject",
                    ),
                ),
                (
                    "type",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="+",
                        to="placement.consumertype",
                    ),
                ),
                (
                    "user",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="+",
                        to="placement.consumeruser",
                    ),
                ),
                (
                    "resource_class",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="+",
                        to="placement.resourceclass",
                    ),
                ),
            ],
            options={
                "db_table": "placement_project_usage",
            },
        ),
        migrations.CreateModel(
            name="ResourceProvider",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("uuid", models.UUIDField(unique=True)),
                ("name", models.CharField(max_length=200, unique=True)),
                ("generation", models.IntegerField(db_default=0)),
                (
                    "origin",
                    models.CharField(
                        choices=[
                            ("host", "host of the region"),
                            ("api", "client of the API"),
                            ("upstream", "copy of another Placement"),
                        ],
                        db_default="api",
                        max_length=16,
                    ),
                ),
                (
                    "inventory_source",
                    models.CharField(
                        choices=[
                            ("api", "nova-compute, through the API"),
                            ("host", "the region's hosts"),
                        ],
                        db_default="api",
                        max_length=16,
                    ),
                ),
                ("zone", models.CharField(blank=True, db_default="", max_length=255)),
                ("is_retiring", models.BooleanField(db_default=False)),
                (
                    "host_traits",
                    django.contrib.postgres.fields.ArrayField(
                        base_field=models.CharField(max_length=255),
                        blank=True,
                        db_default=[],
                        default=list,
                        size=None,
                    ),
                ),
                (
                    "host_aggregates",
                    django.contrib.postgres.fields.ArrayField(
                        base_field=models.UUIDField(),
                        blank=True,
                        db_default=[],
                        default=list,
                        size=None,
                    ),
                ),
                (
                    "created_at",
                    models.DateTimeField(db_default=django.db.models.functions.datetime.Now()),
                ),
                (
                    "updated_at",
                    models.DateTimeField(db_default=django.db.models.functions.datetime.Now()),
                ),
                (
                    "parent",
                    models.ForeignKey(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="children",
                        to="placement.resourceprovider",
                    ),
                ),
                (
                    "root",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="members",
                        to="placement.resourceprovider",
                    ),
                ),
            ],
            options={
                "db_table": "placement_provider",
                "ordering": ("id",),
            },
        ),
        migrations.CreateModel(
            name="ProviderAggregate",
            fields=[
                (
                    "pk",
                    models.CompositePrimaryKey(
                        "provider_id",
                        "aggregate_id",
                        blank=True,
                        editable=False,
                        primary_key=True,
                        serialize=False,
                    ),
                ),
                (
                    "aggregate",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="provider_links",
                        to="placement.aggregate",
                    ),
                ),
                (
                    "provider",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="aggregate_links",
                        to="placement.resourceprovider",
                    ),
                ),
            ],
            options={
                "db_table": "placement_provider_aggregate",
            },
        ),
        migrations.CreateModel(
            name="Inventory",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("total", models.IntegerField()),
                ("reserved", models.IntegerField(db_default=0)),
                ("min_unit", models.IntegerField(db_default=1)),
                ("max_unit", models.IntegerField(db_default=2147483647)),
                ("step_size", models.IntegerField(db_default=1)),
                ("allocation_ratio", models.FloatField(db_default=1.0)),
                ("used", models.BigIntegerField(db_default=0)),
                (
                    "created_at",
                    models.DateTimeField(db_default=django.db.models.functions.datetime.Now()),
                ),
                (
                    "updated_at",
                    models.DateTimeField(db_default=django.db.models.functions.datetime.Now()),
                ),
                (
                    "resource_class",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="inventories",
                        to="placement.resourceclass",
                    ),
                ),
                (
                    "provider",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="inventories",
                        to="placement.resourceprovider",
                    ),
                ),
            ],
            options={
                "verbose_name_plural": "inventories",
                "db_table": "placement_inventory",
                "ordering": ("provider", "resource_class"),
            },
        ),
        migrations.CreateModel(
            name="Allocation",
            fields=[
                (
                    "pk",
                    models.CompositePrimaryKey(
                        "consumer_id",
                        "provider_id",
                        "resource_class_id",
                        blank=True,
                        editable=False,
                        primary_key=True,
                        serialize=False,
                    ),
                ),
                ("used", models.BigIntegerField()),
                (
                    "created_at",
                    models.DateTimeField(db_default=django.db.models.functions.datetime.Now()),
                ),
                (
                    "consumer",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="allocations",
                        to="placement.consumer",
                    ),
                ),
                (
                    "resource_class",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="allocations",
                        to="placement.resourceclass",
                    ),
                ),
                (
                    "provider",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="allocations",
                        to="placement.resourceprovider",
                    ),
                ),
            ],
            options={
                "db_table": "placement_allocation",
            },
        ),
        migrations.CreateModel(
            name="ProviderTrait",
            fields=[
                (
                    "pk",
                    models.CompositePrimaryKey(
                        "provider_id",
                        "trait_id",
                        blank=True,
                        editable=False,
                        primary_key=True,
                        serialize=False,
                    ),
                ),
                (
                    "provider",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="trait_links",
                        to="placement.resourceprovider",
                    ),
                ),
                (
                    "trait",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="provider_links",
                        to="placement.trait",
                    ),
                ),
            ],
            options={
                "db_table": "placement_provider_trait",
            },
        ),
        migrations.AddIndex(
            model_name="consumer",
            index=models.Index(fields=["project", "user"], name="placement_consumer_owner_idx"),
        ),
        migrations.AddIndex(
            model_name="projectusage",
            index=models.Index(fields=["project", "user"], name="placement_project_usage_idx"),
        ),
        migrations.AddConstraint(
            model_name="resourceprovider",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    ("parent__isnull", True),
                    models.Q(("parent", models.F("pk")), _negated=True),
                    _connector="OR",
                ),
                name="placement_provider_not_own_parent",
            ),
        ),
        migrations.AddConstraint(
            model_name="resourceprovider",
            constraint=models.CheckConstraint(
                condition=models.Q(("generation__gte", 0)), name="placement_provider_generation"
            ),
        ),
        migrations.AddConstraint(
            model_name="inventory",
            constraint=models.UniqueConstraint(
                fields=("provider", "resource_class"), name="placement_inventory_class"
            ),
        ),
        migrations.AddConstraint(
            model_name="inventory",
            constraint=models.CheckConstraint(
                condition=models.Q(("used__gte", 0)), name="placement_inventory_used"
            ),
        ),
        migrations.AddConstraint(
            model_name="inventory",
            constraint=models.CheckConstraint(
                condition=models.Q(("reserved__gte", 0), ("total__gte", 1)),
                name="placement_inventory_amounts",
            ),
        ),
        migrations.AddConstraint(
            model_name="inventory",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    ("max_unit__gte", 1), ("min_unit__gte", 1), ("step_size__gte", 1)
                ),
                name="placement_inventory_units",
            ),
        ),
        migrations.AddIndex(
            model_name="allocation",
            index=models.Index(
                fields=["provider", "resource_class"], name="placement_allocation_held_idx"
            ),
        ),
        migrations.AddConstraint(
            model_name="allocation",
            constraint=models.CheckConstraint(
                condition=models.Q(("used__gte", 1)), name="placement_allocation_used"
            ),
        ),
        # Inventory in use cannot be deleted. Keys are checked at once, within the functions, where
        # plans hold that stay good while the tables grow, and not at commit.
        migrations.RunSQL(
            "ALTER TABLE placement_allocation ADD CONSTRAINT placement_allocation_inventory "
            "FOREIGN KEY (provider_id, resource_class_id) "
            "REFERENCES placement_inventory (provider_id, resource_class_id) DEFERRABLE",
            "ALTER TABLE placement_allocation DROP CONSTRAINT placement_allocation_inventory",
        ),
        migrations.RunPython(check_keys_at_once, migrations.RunPython.noop),
        # Rows that are often updated: room for the new version on the same page.
        migrations.RunSQL(
            "ALTER TABLE placement_inventory SET (fillfactor = 70)",
            "ALTER TABLE placement_inventory RESET (fillfactor)",
        ),
        migrations.RunSQL(
            "ALTER TABLE placement_consumer SET (fillfactor = 70)",
            "ALTER TABLE placement_consumer RESET (fillfactor)",
        ),
        migrations.RunSQL(
            "ALTER TABLE placement_provider SET (fillfactor = 70)",
            "ALTER TABLE placement_provider RESET (fillfactor)",
        ),
    ]
