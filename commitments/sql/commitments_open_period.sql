-- One period is open at a time as there is one assignment at a time.
CREATE OR REPLACE FUNCTION commitments_open_period() RETURNS trigger LANGUAGE plpgsql
SET plan_cache_mode = force_custom_plan AS $$
BEGIN
    INSERT INTO commitments_assignmentperiod
           (vm_uuid, resource_type, commitment_uuid, project_id, valid_from)
    SELECT fresh.vm_uuid, fresh.resource_type, owner.commitment_uuid, owner.project_id,
           clock_timestamp()
      FROM fresh JOIN commitments_commitment AS owner ON owner.id = fresh.commitment_id;
    RETURN NULL;
END
$$;

CREATE OR REPLACE TRIGGER commitments_instanceassignment_open_period
    AFTER INSERT ON commitments_instanceassignment REFERENCING NEW TABLE AS fresh
    FOR EACH STATEMENT EXECUTE FUNCTION commitments_open_period();
