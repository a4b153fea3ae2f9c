CREATE OR REPLACE TRIGGER failover_failoverpolicy_log_deletion
    AFTER DELETE ON failover_failoverpolicy REFERENCING OLD TABLE AS gone
    FOR EACH STATEMENT EXECUTE FUNCTION headroom_log_deletion();
CREATE OR REPLACE TRIGGER failover_failoverpolicy_track_change
    BEFORE INSERT OR UPDATE ON failover_failoverpolicy
    FOR EACH ROW EXECUTE FUNCTION headroom_track_change();

CREATE OR REPLACE TRIGGER failover_failoverreservation_log_deletion
    AFTER DELETE ON failover_failoverreservation REFERENCING OLD TABLE AS gone
    FOR EACH STATEMENT EXECUTE FUNCTION headroom_log_deletion();
CREATE OR REPLACE TRIGGER failover_failoverreservation_track_change
    BEFORE INSERT OR UPDATE ON failover_failoverreservation
    FOR EACH ROW EXECUTE FUNCTION headroom_track_change();
