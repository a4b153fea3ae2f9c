"""A claim writes and locks less: no index of users or of no type, no lock of its project's row."""

import django.db.models.deletion
from django.db import migrations, models

BUILD = (
    "CREATE INDEX CONCURRENTLY placement_consumer_type_idx"
    " ON placement_consumer (type_id) WHERE type_id IS NOT NULL"
)
DROP = """
ALTER TABLE placement_consumer
    DROP CONSTRAINT IF EXISTS placement_consumer_project_id_c5359c3e_fk_placement_project_id,
    DROP CONSTRAINT IF EXISTS placement_consumer_user_id_6558ca89_fk_placement_user_id
"""


class Migration(migrations.Migration):
    atomic = False
    dependencies = [("placement", "0020_parts")]

    operations = [
        migrations.SeparateDatabaseAndState(
            state_operations=[
                migrations.AlterField(
                    model_name="consumer",
                    name="project",
                    field=models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        on_delete=django.db.models.deletion.PROTECT,
                        to="placement.consumerproject",
                    ),
                ),
                migrations.AlterField(
                    model_name="consumer",
                    name="user",
                    field=models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        on_delete=django.db.models.deletion.PROTECT,
                        to="placement.consumeruser",
                    ),
                ),
                migrations.AlterField(
                    model_name="consumer",
                    name="type",
                    field=models.ForeignKey(
                        blank=True,
                        db_index=False,
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        to="placement.consumertype",
                    ),
                ),
                migrations.AddIndex(
                    model_name="consumer",
                    index=models.Index(
                        condition=models.Q(("type__isnull", False)),
                        fields=["type"],
                        name="placement_consumer_type_idx",
                    ),
                ),
            ],
            database_operations=[
                migrations.RunSQL(
                    [
                        "DROP INDEX CONCURRENTLY IF EXISTS placement_consumer_type_idx",
                        BUILD,
                        "DROP INDEX CONCURRENTLY IF EXISTS placement_consumer_type_id_c210ffec",
                        "DROP INDEX CONCURRENTLY IF EXISTS placement_consumer_user_id_6558ca89",
                        DROP,
                    ],
                    migrations.RunSQL.noop,
                )
            ],
        )
    ]
