-- Closing looks periods up by VM, however many there are: the first plans of a session must not read
-- the whole table.
CREATE OR REPLACE FUNCTION commitments_close_period() RETURNS trigger LANGUAGE plpgsql
SET enable_seqscan = off SET plan_cache_mode = force_custom_plan AS $$
BEGIN
    UPDATE commitments_assignmentperiod AS period
       SET valid_to = greatest(clock_timestamp(), period.valid_from)
      FROM gone
     WHERE period.vm_uuid = gone.vm_uuid AND period.resource_type = gone.resource_type
       AND period.valid_to IS NULL;
    RETURN NULL;
END
$$;

CREATE OR REPLACE TRIGGER commitments_instanceassignment_close_period
    AFTER DELETE ON commitments_instanceassignment REFERENCING OLD TABLE AS gone
    FOR EACH STATEMENT EXECUTE FUNCTION commitments_close_period();
