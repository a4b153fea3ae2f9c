-- A period is closed once; retention deletes old ones (SET LOCAL headroom.retention = 'on').
CREATE OR REPLACE FUNCTION commitments_keep_period() RETURNS trigger LANGUAGE plpgsql AS $$
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
$$;

CREATE OR REPLACE TRIGGER commitments_assignmentperiod_append_only
    BEFORE UPDATE OR DELETE ON commitments_assignmentperiod
    FOR EACH ROW EXECUTE FUNCTION commitments_keep_period();
