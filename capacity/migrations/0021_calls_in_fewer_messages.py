"""What a call of the scheduler writes, as one statement each (spec scheduling, 10.5, 16.2).

A statement of its own is a transaction of its own: no message begins or ends it. And what a
function says is parsed and planned once for a session, not for every VM.
"""

from django.db import migrations

ASKED = (
    ("vm_uuid", "text"),
    ("names", "text[]"),
    ("memory_bytes", "bigint"),
    ("vcpus", "bigint"),
    ("ignored", "text[]"),
    ("snapshot", "text"),
    ("most", "integer"),
    ("now", "timestamptz"),
    ("lifetime", "interval"),
    ("group", "text"),
    ("flavor", "text"),
    ("project_id", "text"),
    ("domain_id", "text"),
    ("creator", "text"),
    ("request_id", "text"),
    ("user_id", "text"),
    ("intent", "text"),
    ("source_host_id", "bigint"),
    ("placement_id", "uuid"),
)

# Each statement of the function sees what was committed until then, so that the rooms are looked at
# after the lock of the VM was waited for. Slots that expect the VM must be counted again in this
# transaction, which takes more than this function: it fails, and nothing was done.
HOLD_ALONE = f"""
CREATE FUNCTION capacity_hold_alone(
    p_lock_timeout text, p_lock_key bigint, {", ".join(f"p_{name} {kind}" for name, kind in ASKED)}
) RETURNS TABLE (
    start_time timestamptz, host_ids bigint[], names text[], previous bigint[], taken bigint[],
    is_expected boolean
) LANGUAGE plpgsql AS $$
BEGIN
    PERFORM set_config('lock_timeout', p_lock_timeout, true);
    PERFORM pg_advisory_xact_lock(p_lock_key);
    SELECT held.start_time, held.host_ids, held.names, held.previous, held.taken, held.is_expected
      INTO start_time, host_ids, names, previous, taken, is_expected
      FROM capacity_hold_free({", ".join(f"p_{name}" for name, _ in ASKED)}) AS held;
    IF is_expected THEN
        RAISE EXCEPTION 'slots expect VM %', p_vm_uuid USING ERRCODE = 'HR001';
    END IF;
    RETURN NEXT;
END
$$
"""  # noqa: S608 - constants only

DECISION = (
    ("vm_uuid", "text"),
    ("project_id", "text"),
    ("request_id", "text"),
    ("pipeline_name", "text"),
    ("pipeline_version", "integer"),
    ("intent", "text"),
    ("zone", "text"),
    ("flavor_name", "text"),
    ("flavor_group_name", "text"),
    ("memory_bytes", "bigint"),
    ("vcpus", "bigint"),
    ("is_successful", "boolean"),
    ("outcome_class", "text"),
    ("message", "text"),
    ("hosts_in", "integer"),
    ("hosts_out", "integer"),
    ("target_host_name", "text"),
    ("top_hosts", "jsonb"),
    ("removals", "jsonb"),
    ("duration_microseconds", "integer"),
)
COLUMNS = ", ".join(name for name, _ in DECISION)

# The lock keeps the listing until the decision that refers to it is committed.
RECORD_DECISION = f"""
CREATE FUNCTION capacity_record_decision(p_decision json, p_masks bytea, p_digest text)
RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    v_listing_id bigint;
BEGIN
    IF p_digest <> '' THEN
        SELECT listing.id INTO v_listing_id FROM capacity_hostlisting AS listing
         WHERE listing.digest = p_digest FOR KEY SHARE;
        IF v_listing_id IS NULL THEN
            RETURN false;
        END IF;
    END IF;
    INSERT INTO capacity_schedulingdecision ({COLUMNS}, masks, listing_id)
    SELECT {COLUMNS}, p_masks, v_listing_id
      FROM json_to_record(p_decision) AS kept({", ".join(f"{name} {kind}" for name, kind in DECISION)});
    RETURN true;
END
$$
"""  # noqa: S608 - constants only

KINDS = ", ".join(kind for _, kind in ASKED)


class Migration(migrations.Migration):
    dependencies = [("capacity", "0020_functions_of_calls")]

    operations = [
        migrations.RunSQL(HOLD_ALONE, f"DROP FUNCTION capacity_hold_alone(text, bigint, {KINDS})"),
        migrations.RunSQL(
            RECORD_DECISION, "DROP FUNCTION capacity_record_decision(json, bytea, text)"
        ),
    ]
