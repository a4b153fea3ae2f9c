"""A log of changed rows, which readers follow instead of an index in each table.

An index on what every write changes kept PostgreSQL from updating rows within their pages. Deletions
go to the same log; the release before reads them from a view of it.
"""

import django.contrib.postgres.fields
import django.contrib.postgres.indexes
import django.db.models.functions.datetime
from django.db import migrations, models

import journal.models

NEWEST_XID = (1 << 63) - 1

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

# One entry for each statement, with the keys of its rows. A write that leaves changed_xid alone,
# as of columns that only their writer reads, is none that others follow.
LOG_CHANGE = """
CREATE FUNCTION headroom_log_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO journal_loggedchange (table_name, row_ids, is_deletion)
    SELECT TG_TABLE_NAME, array_agg(fresh.id), false
      FROM fresh
     WHERE fresh.changed_xid = pg_current_xact_id_if_assigned()::text::bigint
    HAVING count(*) > 0;
    RETURN NULL;
END
$$
"""
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

# What was written before a table had its triggers is in no log: positions of that time are told to
# read everything anew. CREATE TRIGGER waits for writers, so who begins later is logged.
FOLLOW = """
CREATE FUNCTION journal_follow(p_table text) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    has_rows boolean;
    event text;
BEGIN
    FOREACH event IN ARRAY ARRAY['insert', 'update'] LOOP
        EXECUTE format('CREATE TRIGGER %I AFTER %s ON %I REFERENCING NEW TABLE AS fresh'
                       ' FOR EACH STATEMENT EXECUTE FUNCTION headroom_log_change()',
                       p_table || '_log_' || event, event, p_table);
    END LOOP;
    EXECUTE format('SELECT EXISTS (SELECT FROM %I)', p_table) INTO has_rows;
    IF has_rows THEN
        INSERT INTO journal_prunedlog (log, pruned_xid)
        VALUES ('deletions', pg_current_xact_id()::text::bigint)
        ON CONFLICT (log) DO UPDATE SET pruned_xid = excluded.pruned_xid;
    END IF;
END
$$
"""
UNFOLLOW = """
CREATE FUNCTION journal_unfollow(p_table text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    EXECUTE format('DROP TRIGGER %I ON %I', p_table || '_log_insert', p_table);
    EXECUTE format('DROP TRIGGER %I ON %I', p_table || '_log_update', p_table);
END
$$
"""

# What a snapshot does not show: later transactions, and those that were running. Both are looked up
# by index, so that a long transaction anywhere in the server costs nothing.
CHANGES = f"""
CREATE FUNCTION journal_changes(p_table text, p_since text)
RETURNS TABLE (row_id bigint, is_deletion boolean)
LANGUAGE plpgsql STABLE ROWS 20
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET jit = off AS $$
DECLARE
    v_next bigint := pg_snapshot_xmax(p_since::pg_snapshot)::text::bigint;
    v_running bigint[] := ARRAY(
        SELECT xid::text::bigint FROM pg_snapshot_xip(p_since::pg_snapshot) AS xid);
BEGIN
    RETURN QUERY
    SELECT DISTINCT unnest(logged.row_ids), logged.is_deletion
      FROM journal_loggedchange AS logged
     WHERE logged.table_name = p_table
       AND (logged.changed_xid BETWEEN v_next AND {NEWEST_XID}
            OR logged.changed_xid = ANY (v_running));
END
$$
"""  # noqa: S608 - constants only
# What was forgotten is in doubt for positions that did not see all of it.
ARE_FORGOTTEN = """
CREATE FUNCTION journal_is_forgotten(p_since text) RETURNS boolean LANGUAGE sql STABLE AS $$
SELECT EXISTS (
       SELECT FROM journal_prunedlog AS pruned
        WHERE pruned.log = 'deletions'
          AND pruned.pruned_xid >= pg_snapshot_xmin(p_since::pg_snapshot)::text::bigint)
$$
"""
FUNCTIONS = {
    "headroom_log_change()": LOG_CHANGE,
    "journal_follow(text)": FOLLOW,
    "journal_unfollow(text)": UNFOLLOW,
    "journal_changes(text, text)": CHANGES,
    "journal_is_forgotten(text)": ARE_FORGOTTEN,
}


class Migration(migrations.Migration):
    dependencies = [("journal", "0007_kept_sums")]

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
        *(migrations.RunSQL(text, f"DROP FUNCTION {name}") for name, text in FUNCTIONS.items()),
        migrations.DeleteModel(name="DeletedRow"),
        migrations.RunSQL(DELETIONS, "DROP VIEW journal_deletedrow"),
    ]
