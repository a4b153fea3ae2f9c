from django.db import migrations

# One period is open at a time as there is one assignment at a time. Closing looks periods up by VM,
# however many there are: the first plans of a session must not read the whole table.
OPEN = """
CREATE FUNCTION commitments_open_period() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO commitments_assignmentperiod
           (vm_uuid, resource_type, commitment_uuid, project_id, valid_from)
    SELECT fresh.vm_uuid, fresh.resource_type, owner.commitment_uuid, owner.project_id,
           clock_timestamp()
      FROM fresh JOIN commitments_commitment AS owner ON owner.id = fresh.commitment_id;
    RETURN NULL;
END
$$
"""

MOVE = """
CREATE FUNCTION commitments_move_period() RETURNS trigger LANGUAGE plpgsql
SET enable_seqscan = off AS $$
BEGIN
    UPDATE commitments_assignmentperiod AS period
       SET valid_to = greatest(clock_timestamp(), period.valid_from)
      FROM gone JOIN fresh USING (id)
     WHERE period.vm_uuid = gone.vm_uuid AND period.resource_type = gone.resource_type
       AND period.valid_to IS NULL
       AND (gone.commitment_id, gone.vm_uuid, gone.resource_type)
           IS DISTINCT FROM (fresh.commitment_id, fresh.vm_uuid, fresh.resource_type);
    INSERT INTO commitments_assignmentperiod
           (vm_uuid, resource_type, commitment_uuid, project_id, valid_from)
    SELECT fresh.vm_uuid, fresh.resource_type, owner.commitment_uuid, owner.project_id,
           clock_timestamp()
      FROM gone JOIN fresh USING (id)
      JOIN commitments_commitment AS owner ON owner.id = fresh.commitment_id
     WHERE (gone.commitment_id, gone.vm_uuid, gone.resource_type)
           IS DISTINCT FROM (fresh.commitment_id, fresh.vm_uuid, fresh.resource_type);
    RETURN NULL;
END
$$
"""

CLOSE = """
CREATE FUNCTION commitments_close_period() RETURNS trigger LANGUAGE plpgsql
SET enable_seqscan = off AS $$
BEGIN
    UPDATE commitments_assignmentperiod AS period
       SET valid_to = greatest(clock_timestamp(), period.valid_from)
      FROM gone
     WHERE period.vm_uuid = gone.vm_uuid AND period.resource_type = gone.resource_type
       AND period.valid_to IS NULL;
    RETURN NULL;
END
$$
"""

# A period is closed once; retention deletes old ones (SET LOCAL headroom.retention = 'on').
KEEP = """
CREATE FUNCTION commitments_keep_period() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'DELETE' THEN
        IF current_setting('headroom.retention', true) = 'on' THEN
            RETURN OLD;
        END IF;
    ELSIF OLD.valid_to IS NULL
          AND (NEW.vm_uuid, NEW.resource_type, NEW.commitment_uuid, NEW.project_id, NEW.valid_from)
            = (OLD.vm_uuid, OLD.resource_type, OLD.commitment_uuid, OLD.project_id, OLD.valid_from)
    THEN
        RETURN NEW;
    END IF;
    RAISE EXCEPTION '% is append-only', TG_TABLE_NAME USING ERRCODE = 'restrict_violation';
END
$$
"""

DEPART = """
CREATE FUNCTION commitments_note_departure() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO commitments_projectdeparture (project_id)
    SELECT DISTINCT gone.project_id FROM gone WHERE gone.project_id <> '';
    RETURN NULL;
END
$$
"""

ASSIGNMENTS = "commitments_instanceassignment"


def trigger(name: str, table: str, moment: str, function: str) -> migrations.RunSQL:
    return migrations.RunSQL(
        f"CREATE TRIGGER {name} {moment} EXECUTE FUNCTION {function}()",
        f"DROP TRIGGER {name} ON {table}",
    )


class Migration(migrations.Migration):
    dependencies = [
        ("commitments", "0005_usage_bookkeeping"),
        ("hosts", "0002_change_tracking"),
    ]

    operations = [
        migrations.RunSQL(OPEN, "DROP FUNCTION commitments_open_period()"),
        migrations.RunSQL(MOVE, "DROP FUNCTION commitments_move_period()"),
        migrations.RunSQL(CLOSE, "DROP FUNCTION commitments_close_period()"),
        migrations.RunSQL(KEEP, "DROP FUNCTION commitments_keep_period()"),
        migrations.RunSQL(DEPART, "DROP FUNCTION commitments_note_departure()"),
        trigger(
            f"{ASSIGNMENTS}_open_period",
            ASSIGNMENTS,
            f"AFTER INSERT ON {ASSIGNMENTS} REFERENCING NEW TABLE AS fresh FOR EACH STATEMENT",
            "commitments_open_period",
        ),
        trigger(
            f"{ASSIGNMENTS}_move_period",
            ASSIGNMENTS,
            f"AFTER UPDATE ON {ASSIGNMENTS} REFERENCING OLD TABLE AS gone NEW TABLE AS fresh "
            "FOR EACH STATEMENT",
            "commitments_move_period",
        ),
        trigger(
            f"{ASSIGNMENTS}_close_period",
            ASSIGNMENTS,
            f"AFTER DELETE ON {ASSIGNMENTS} REFERENCING OLD TABLE AS gone FOR EACH STATEMENT",
            "commitments_close_period",
        ),
        trigger(
            "commitments_assignmentperiod_append_only",
            "commitments_assignmentperiod",
            "BEFORE UPDATE OR DELETE ON commitments_assignmentperiod FOR EACH ROW",
            "commitments_keep_period",
        ),
        trigger(
            "commitments_note_vm_departure",
            "hosts_instance",
            "AFTER DELETE ON hosts_instance REFERENCING OLD TABLE AS gone FOR EACH STATEMENT",
            "commitments_note_departure",
        ),
        trigger(
            "commitments_note_commitment_departure",
            "commitments_commitment",
            "AFTER DELETE ON commitments_commitment REFERENCING OLD TABLE AS gone "
            "FOR EACH STATEMENT",
            "commitments_note_departure",
        ),
    ]
