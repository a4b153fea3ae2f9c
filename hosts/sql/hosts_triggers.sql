CREATE OR REPLACE TRIGGER hosts_aggregate_log_deletion
    AFTER DELETE ON hosts_aggregate REFERENCING OLD TABLE AS gone
    FOR EACH STATEMENT EXECUTE FUNCTION headroom_log_deletion();
CREATE OR REPLACE TRIGGER hosts_aggregate_log_insert
    AFTER INSERT ON hosts_aggregate REFERENCING NEW TABLE AS fresh
    FOR EACH STATEMENT EXECUTE FUNCTION headroom_log_change();
CREATE OR REPLACE TRIGGER hosts_aggregate_log_update
    AFTER UPDATE ON hosts_aggregate REFERENCING NEW TABLE AS fresh
    FOR EACH STATEMENT EXECUTE FUNCTION headroom_log_change();
CREATE OR REPLACE TRIGGER hosts_aggregate_track_change
    BEFORE INSERT OR UPDATE ON hosts_aggregate
    FOR EACH ROW EXECUTE FUNCTION headroom_track_change();

CREATE OR REPLACE TRIGGER hosts_domain_log_deletion
    AFTER DELETE ON hosts_domain REFERENCING OLD TABLE AS gone
    FOR EACH STATEMENT EXECUTE FUNCTION headroom_log_deletion();
CREATE OR REPLACE TRIGGER hosts_domain_track_change
    BEFORE INSERT OR UPDATE ON hosts_domain
    FOR EACH ROW EXECUTE FUNCTION headroom_track_change();

CREATE OR REPLACE TRIGGER hosts_flavor_log_deletion
    AFTER DELETE ON hosts_flavor REFERENCING OLD TABLE AS gone
    FOR EACH STATEMENT EXECUTE FUNCTION headroom_log_deletion();
CREATE OR REPLACE TRIGGER hosts_flavor_track_change
    BEFORE INSERT OR UPDATE ON hosts_flavor
    FOR EACH ROW EXECUTE FUNCTION headroom_track_change();

CREATE OR REPLACE TRIGGER hosts_host_log_deletion
    AFTER DELETE ON hosts_host REFERENCING OLD TABLE AS gone
    FOR EACH STATEMENT EXECUTE FUNCTION headroom_log_deletion();
CREATE OR REPLACE TRIGGER hosts_host_log_insert
    AFTER INSERT ON hosts_host REFERENCING NEW TABLE AS fresh
    FOR EACH STATEMENT EXECUTE FUNCTION headroom_log_change();
CREATE OR REPLACE TRIGGER hosts_host_log_update
    AFTER UPDATE ON hosts_host REFERENCING NEW TABLE AS fresh
    FOR EACH STATEMENT EXECUTE FUNCTION headroom_log_change();
CREATE OR REPLACE TRIGGER hosts_host_track_change
    BEFORE INSERT OR UPDATE ON hosts_host
    FOR EACH ROW EXECUTE FUNCTION headroom_track_change();

CREATE OR REPLACE TRIGGER hosts_hostresource_log_deletion
    AFTER DELETE ON hosts_hostresource REFERENCING OLD TABLE AS gone
    FOR EACH STATEMENT EXECUTE FUNCTION headroom_log_deletion();
CREATE OR REPLACE TRIGGER hosts_hostresource_log_insert
    AFTER INSERT ON hosts_hostresource REFERENCING NEW TABLE AS fresh
    FOR EACH STATEMENT EXECUTE FUNCTION headroom_log_change();
CREATE OR REPLACE TRIGGER hosts_hostresource_log_update
    AFTER UPDATE ON hosts_hostresource REFERENCING NEW TABLE AS fresh
    FOR EACH STATEMENT EXECUTE FUNCTION headroom_log_change();
CREATE OR REPLACE TRIGGER hosts_hostresource_track_change
    BEFORE INSERT OR UPDATE ON hosts_hostresource
    FOR EACH ROW EXECUTE FUNCTION headroom_track_change();

CREATE OR REPLACE TRIGGER hosts_image_log_deletion
    AFTER DELETE ON hosts_image REFERENCING OLD TABLE AS gone
    FOR EACH STATEMENT EXECUTE FUNCTION headroom_log_deletion();
CREATE OR REPLACE TRIGGER hosts_image_track_change
    BEFORE INSERT OR UPDATE ON hosts_image
    FOR EACH ROW EXECUTE FUNCTION headroom_track_change();

CREATE OR REPLACE TRIGGER hosts_instance_log_deletion
    AFTER DELETE ON hosts_instance REFERENCING OLD TABLE AS gone
    FOR EACH STATEMENT EXECUTE FUNCTION headroom_log_deletion();
CREATE OR REPLACE TRIGGER hosts_instance_log_insert
    AFTER INSERT ON hosts_instance REFERENCING NEW TABLE AS fresh
    FOR EACH STATEMENT EXECUTE FUNCTION headroom_log_change();
CREATE OR REPLACE TRIGGER hosts_instance_log_update
    AFTER UPDATE ON hosts_instance REFERENCING NEW TABLE AS fresh
    FOR EACH STATEMENT EXECUTE FUNCTION headroom_log_change();
CREATE OR REPLACE TRIGGER hosts_instance_track_change
    BEFORE INSERT OR UPDATE ON hosts_instance
    FOR EACH ROW EXECUTE FUNCTION headroom_track_change();

CREATE OR REPLACE TRIGGER hosts_project_log_deletion
    AFTER DELETE ON hosts_project REFERENCING OLD TABLE AS gone
    FOR EACH STATEMENT EXECUTE FUNCTION headroom_log_deletion();
CREATE OR REPLACE TRIGGER hosts_project_track_change
    BEFORE INSERT OR UPDATE ON hosts_project
    FOR EACH ROW EXECUTE FUNCTION headroom_track_change();

CREATE OR REPLACE TRIGGER hosts_servergroup_log_deletion
    AFTER DELETE ON hosts_servergroup REFERENCING OLD TABLE AS gone
    FOR EACH STATEMENT EXECUTE FUNCTION headroom_log_deletion();
CREATE OR REPLACE TRIGGER hosts_servergroup_track_change
    BEFORE INSERT OR UPDATE ON hosts_servergroup
    FOR EACH ROW EXECUTE FUNCTION headroom_track_change();

-- What was written before a table had its triggers is in no log: positions of that time are told to
-- read everything anew. CREATE TRIGGER waits for writers, so who begins later is logged.
INSERT INTO journal_prunedlog (log, pruned_xid)
SELECT 'deletions', pg_current_xact_id()::text::bigint
 WHERE EXISTS (SELECT FROM hosts_host)
    OR EXISTS (SELECT FROM hosts_instance)
    OR EXISTS (SELECT FROM hosts_aggregate)
    ON CONFLICT (log) DO UPDATE SET pruned_xid = excluded.pruned_xid;
