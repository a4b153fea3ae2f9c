-- What a snapshot does not show: later transactions, and those that were running. Both are looked up
-- by index, so that a long transaction anywhere in the server costs nothing.
CREATE OR REPLACE FUNCTION journal_changes(p_table text, p_since text)
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
       AND (logged.changed_xid BETWEEN v_next AND 9223372036854775807
            OR logged.changed_xid = ANY (v_running));
END
$$;
