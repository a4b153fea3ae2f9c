"""A log of changed rows, which readers follow instead of an index in each table.

An index on what every write changes kept PostgreSQL from updating rows within their pages. Deletions
go to the same log; the release before reads them from a view of it.
"""

import django.contrib.postgres.fields
import django.contrib.postgres.indexes
import django.db.models.functions.datetime
from django.db import migrations, models

import journal.models

KEEP_DELETIONS = """
INSERT INTO journal_loggedchange (table_name, row_ids, is_deletion, changed_xid, logged_at)
SELECT table_name, ARRAY[row_id], true, changed_xid, deleted_at FROM journal_deletedrow ORDER BY id
"""
RETURN_DELETIONS = """
INSERT INTO journal_deletedrow (table_name, row_id, changed_xid, deleted_at)
SELECT table_name, unnest(row_ids), changed_xid, logged_at
  FROM journal_loggedchange WHERE is_deletion ORDER BY id
"""
DELETIONS = """
CREATE VIEW journal_deletedrow AS
SELECT table_name, unnest(row_ids) AS row_id, changed_xid, logged_at AS deleted_at
  FROM journal_loggedchange WHERE is_deletion
"""

# Whoever deletes before the current functions are there needs this one.
LOG_DELETION = """
CREATE OR REPLACE FUNCTION headroom_log_deletion() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO journal_loggedchange (table_name, row_ids, is_deletion)
    SELECT TG_TABLE_NAME, array_agg(gone.id), true FROM gone HAVING count(*) > 0;
    RETURN NULL;
END
$$
"""
LOG_DELETION_BEFORE = """
CREATE OR REPLACE FUNCTION headroom_log_deletion() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO journal_deletedrow (table_name, row_id)
    SELECT TG_TABLE_NAME, gone.id FROM gone;
    RETURN NULL;
END
$$
"""


class Migration(migrations.Migration):
    dependencies = [("journal", "0001_squashed_0007_kept_sums")]

    operations = [
        migrations.CreateModel(
            name="LoggedChange",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("table_name", models.CharField(max_length=64)),
                (
                    "row_ids",
                    django.contrib.postgres.fields.ArrayField(
                        base_field=models.BigIntegerField(), size=None
                    ),
                ),
                ("is_deletion", models.BooleanField(default=False)),
                (
                    "changed_xid",
                    models.BigIntegerField(
                        db_default=journal.models.CurrentTransactionID(), db_index=True
                    ),
                ),
                (
                    "logged_at",
                    models.DateTimeField(db_default=django.db.models.functions.datetime.Now()),
                ),
            ],
            options={
                "indexes": [
                    django.contrib.postgres.indexes.BrinIndex(
                        fields=["logged_at"], name="journal_logged_at_idx", pages_per_range=16
                    )
                ],
            },
        ),
        # Entries are only added and, past their retention, deleted: vacuum them in small parts.
        migrations.RunSQL(
            "ALTER TABLE journal_loggedchange SET (autovacuum_vacuum_scale_factor = 0.05)",
            migrations.RunSQL.noop,
        ),
        migrations.RunSQL(KEEP_DELETIONS, RETURN_DELETIONS),
        migrations.RunSQL(LOG_DELETION, LOG_DELETION_BEFORE),
        migrations.DeleteModel(name="DeletedRow"),
        migrations.RunSQL(DELETIONS, "DROP VIEW journal_deletedrow"),
    ]
