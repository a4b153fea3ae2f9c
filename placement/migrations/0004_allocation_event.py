import django.db.models.functions.datetime
from django.db import migrations, models

CREATE = """
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
DROP = "DROP TABLE placement_allocation_event"


class Migration(migrations.Migration):
    dependencies = [("placement", "0003_allocation_inventory")]

    operations = [
        migrations.SeparateDatabaseAndState(
            database_operations=[migrations.RunSQL(CREATE, DROP)],
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
    ]
