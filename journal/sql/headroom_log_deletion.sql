CREATE OR REPLACE FUNCTION headroom_log_deletion() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO journal_loggedchange (table_name, row_ids, is_deletion)
    SELECT TG_TABLE_NAME, array_agg(gone.id), true FROM gone HAVING count(*) > 0;
    RETURN NULL;
END
$$;
