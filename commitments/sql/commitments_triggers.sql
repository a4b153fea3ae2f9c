CREATE OR REPLACE TRIGGER commitments_commitment_log_deletion
    AFTER DELETE ON commitments_commitment REFERENCING OLD TABLE AS gone
    FOR EACH STATEMENT EXECUTE FUNCTION headroom_log_deletion();
CREATE OR REPLACE TRIGGER commitments_commitment_log_insert
    AFTER INSERT ON commitments_commitment REFERENCING NEW TABLE AS fresh
    FOR EACH STATEMENT EXECUTE FUNCTION headroom_log_change();
CREATE OR REPLACE TRIGGER commitments_commitment_log_update
    AFTER UPDATE ON commitments_commitment REFERENCING NEW TABLE AS fresh
    FOR EACH STATEMENT EXECUTE FUNCTION headroom_log_change();
CREATE OR REPLACE TRIGGER commitments_commitment_track_change
    BEFORE INSERT OR UPDATE ON commitments_commitment
    FOR EACH ROW EXECUTE FUNCTION headroom_track_change();

CREATE OR REPLACE TRIGGER commitments_commitmentevent_append_only
    BEFORE UPDATE OR DELETE ON commitments_commitmentevent
    FOR EACH ROW EXECUTE FUNCTION headroom_refuse_change();

CREATE OR REPLACE TRIGGER commitments_instanceassignment_log_deletion
    AFTER DELETE ON commitments_instanceassignment REFERENCING OLD TABLE AS gone
    FOR EACH STATEMENT EXECUTE FUNCTION headroom_log_deletion();
CREATE OR REPLACE TRIGGER commitments_instanceassignment_log_insert
    AFTER INSERT ON commitments_instanceassignment REFERENCING NEW TABLE AS fresh
    FOR EACH STATEMENT EXECUTE FUNCTION headroom_log_change();
CREATE OR REPLACE TRIGGER commitments_instanceassignment_log_update
    AFTER UPDATE ON commitments_instanceassignment REFERENCING NEW TABLE AS fresh
    FOR EACH STATEMENT EXECUTE FUNCTION headroom_log_change();
CREATE OR REPLACE TRIGGER commitments_instanceassignment_track_change
    BEFORE INSERT OR UPDATE ON commitments_instanceassignment
    FOR EACH ROW EXECUTE FUNCTION headroom_track_change();

-- What was written before a table had its triggers is in no log: positions of that time are told to
-- read everything anew. CREATE TRIGGER waits for writers, so who begins later is logged.
INSERT INTO journal_prunedlog (log, pruned_xid)
SELECT 'deletions', pg_current_xact_id()::text::bigint
 WHERE EXISTS (SELECT FROM commitments_commitment)
    ON CONFLICT (log) DO UPDATE SET pruned_xid = excluded.pruned_xid;
