-- A statement that inserts or updates fires the update trigger even when it updates nothing: then
-- there is nothing to look up. Else the plan is made anew each time, since a plan made while the
-- history was short would read all of it once it is long.
CREATE OR REPLACE FUNCTION commitments_move_period() RETURNS trigger LANGUAGE plpgsql
SET plan_cache_mode = force_custom_plan SET enable_seqscan = off AS $$
BEGIN
    IF NOT EXISTS (SELECT FROM gone) THEN
        RETURN NULL;
    END IF;
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
$$;

CREATE OR REPLACE TRIGGER commitments_instanceassignment_move_period
    AFTER UPDATE ON commitments_instanceassignment REFERENCING OLD TABLE AS gone NEW TABLE AS
        fresh
    FOR EACH STATEMENT EXECUTE FUNCTION commitments_move_period();
