CREATE OR REPLACE TRIGGER failover_failoverpolicy_log_deletion
    AFTER DELETE ON failover_failoverpolicy REFERENCING OLD TABLE AS gone
    FOR EACH STATEMENT EXECUTE FUNCTION headroom_log_deletion();
CREATE OR REPLACE TRIGGER failover_failoverpolicy_track_change
    BEFORE INSERT OR UPDATE ON failover_failoverpolicy
    FOR EACH ROW EXECUTE FUNCTION headroom_track_change();

CREATE OR REPLACE TRIGGER failover_failoverreservation_log_deletion
    AFTER DELETE ON failover_failoverreservation REFERENCING OLD TABLE AS gone
    FOR EACH STATEMENT EXECUTE FUNCTION headroom_log_deletion();
CREATE OR REPLACE TRIGGER failover_failoverreservation_log_insert
    AFTER INSERT ON failover_failoverreservation REFERENCING NEW TABLE AS fresh
    FOR EACH STATEMENT EXECUTE FUNCTION headroom_log_change();
CREATE OR REPLACE TRIGGER failover_failoverreservation_log_update
    AFTER UPDATE ON failover_failoverreservation REFERENCING NEW TABLE AS fresh
    FOR EACH STATEMENT EXECUTE FUNCTION headroom_log_change();
CREATE OR REPLACE TRIGGER failover_failoverreservation_track_change
    BEFORE INSERT OR UPDATE ON failover_failoverreservation
    FOR EACH ROW EXECUTE FUNCTION headroom_track_change();

-- What was written before a table had its triggers is in no log: positions of that time are told to
-- read everything anew. CREATE TRIGGER waits for writers, so who begins later is logged.
INSERT INTO journal_prunedlog (log, pruned_xid)
SELECT 'deletions', pg_current_xact_id()::text::bigint
 WHERE EXISTS (SELECT FROM failover_failoverreservation)
    ON CONFLICT (log) DO UPDATE SET pruned_xid = excluded.pruned_xid;
