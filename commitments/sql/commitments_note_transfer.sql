-- Followers of commitments read a moved one as its new project's: the old one has to be told.
CREATE OR REPLACE FUNCTION commitments_note_transfer() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO commitments_projectdeparture (project_id, is_of_commitment)
    VALUES (OLD.project_id, true);
    RETURN NULL;
END
$$;

CREATE OR REPLACE TRIGGER commitments_note_commitment_transfer
    AFTER UPDATE OF project_id ON commitments_commitment FOR EACH ROW
    WHEN (OLD.project_id <> NEW.project_id AND OLD.project_id <> '')
    EXECUTE FUNCTION commitments_note_transfer();
