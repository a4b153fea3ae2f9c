CREATE OR REPLACE FUNCTION headroom_track_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    NEW.changed_xid := pg_current_xact_id()::text::bigint;
    NEW.updated_at := statement_timestamp();
    RETURN NEW;
END
$$;
