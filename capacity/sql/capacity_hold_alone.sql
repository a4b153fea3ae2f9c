-- A hold as a statement, and so a transaction, of its own: no message begins or ends it.
-- Each statement of the function sees what was committed until then, so that the rooms are looked at
-- after the lock of the VM was waited for. Slots that expect the VM must be counted again in this
-- transaction, which takes more than this function: it fails, and nothing was done.
CREATE OR REPLACE FUNCTION capacity_hold_alone(
    p_lock_timeout text, p_lock_key bigint, p_vm_uuid text, p_names text[], p_memory_bytes bigint,
        p_vcpus bigint, p_ignored text[], p_snapshot text, p_most integer, p_now timestamptz,
        p_lifetime interval, p_group text, p_flavor text, p_project_id text, p_domain_id text,
        p_creator text, p_request_id text, p_user_id text, p_intent text, p_source_host_id bigint,
        p_placement_id uuid
) RETURNS TABLE (
    start_time timestamptz, host_ids bigint[], names text[], previous bigint[], taken bigint[],
    is_expected boolean
) LANGUAGE plpgsql AS $$
BEGIN
    PERFORM set_config('lock_timeout', p_lock_timeout, true);
    PERFORM pg_advisory_xact_lock(p_lock_key);
    SELECT held.start_time, held.host_ids, held.names, held.previous, held.taken, held.is_expected
      INTO start_time, host_ids, names, previous, taken, is_expected
      FROM capacity_hold_free(p_vm_uuid, p_names, p_memory_bytes, p_vcpus, p_ignored, p_snapshot,
          p_most, p_now, p_lifetime, p_group, p_flavor, p_project_id, p_domain_id, p_creator,
          p_request_id, p_user_id, p_intent, p_source_host_id, p_placement_id) AS held;
    IF is_expected THEN
        RAISE EXCEPTION 'slots expect VM %', p_vm_uuid USING ERRCODE = 'HR001';
    END IF;
    RETURN NEXT;
END
$$;
