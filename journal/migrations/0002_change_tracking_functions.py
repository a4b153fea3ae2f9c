from django.db import migrations

TRACK_CHANGE = """
CREATE FUNCTION headroom_track_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    NEW.changed_xid := pg_current_xact_id()::text::bigint;
    NEW.updated_at := statement_timestamp();
    RETURN NEW;
END
$$
"""

LOG_DELETION = """
CREATE FUNCTION headroom_log_deletion() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO journal_deletedrow (table_name, row_id)
    SELECT TG_TABLE_NAME, gone.id FROM gone;
    RETURN NULL;
END
$$
"""

# Retention deletes old entries: it says so with SET LOCAL headroom.retention = 'on'.
REFUSE_CHANGE = """
CREATE FUNCTION headroom_refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'DELETE' AND current_setting('headroom.retention', true) = 'on' THEN
        RETURN OLD;
    END IF;
    RAISE EXCEPTION '% is append-only', TG_TABLE_NAME USING ERRCODE = 'restrict_violation';
END
$$
"""


class Migration(migrations.Migration):
    dependencies = [("journal", "0001_initial")]

    operations = [
        migrations.RunSQL(TRACK_CHANGE, "DROP FUNCTION headroom_track_change()"),
        migrations.RunSQL(LOG_DELETION, "DROP FUNCTION headroom_log_deletion()"),
        migrations.RunSQL(REFUSE_CHANGE, "DROP FUNCTION headroom_refuse_change()"),
        migrations.RunSQL(
            "CREATE TRIGGER journal_auditentry_append_only BEFORE UPDATE OR DELETE "
            "ON journal_auditentry FOR EACH ROW EXECUTE FUNCTION headroom_refuse_change()",
            "DROP TRIGGER journal_auditentry_append_only ON journal_auditentry",
        ),
    ]
