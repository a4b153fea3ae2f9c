CREATE OR REPLACE FUNCTION commitments_note_departure() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO commitments_projectdeparture (project_id, is_of_commitment)
    SELECT DISTINCT gone.project_id, TG_TABLE_NAME = 'commitments_commitment'
      FROM gone WHERE gone.project_id <> '';
    RETURN NULL;
END
$$;

CREATE OR REPLACE TRIGGER commitments_note_commitment_departure
    AFTER DELETE ON commitments_commitment REFERENCING OLD TABLE AS gone
    FOR EACH STATEMENT EXECUTE FUNCTION commitments_note_departure();

CREATE OR REPLACE TRIGGER commitments_note_vm_departure
    AFTER DELETE ON hosts_instance REFERENCING OLD TABLE AS gone
    FOR EACH STATEMENT EXECUTE FUNCTION commitments_note_departure();
