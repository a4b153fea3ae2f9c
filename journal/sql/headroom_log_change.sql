-- One entry for each statement, with the keys of its rows. A write that leaves changed_xid alone,
-- as of columns that only their writer reads, is none that others follow (ADR 0026).
CREATE OR REPLACE FUNCTION headroom_log_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO journal_loggedchange (table_name, row_ids, is_deletion)
    SELECT TG_TABLE_NAME, array_agg(fresh.id), false
      FROM fresh
     WHERE fresh.changed_xid = pg_current_xact_id_if_assigned()::text::bigint
    HAVING count(*) > 0;
    RETURN NULL;
END
$$;
