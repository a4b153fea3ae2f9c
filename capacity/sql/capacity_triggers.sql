CREATE OR REPLACE TRIGGER capacity_flavorcapacity_log_deletion
    AFTER DELETE ON capacity_flavorcapacity REFERENCING OLD TABLE AS gone
    FOR EACH STATEMENT EXECUTE FUNCTION headroom_log_deletion();
CREATE OR REPLACE TRIGGER capacity_flavorcapacity_track_change
    BEFORE INSERT OR UPDATE ON capacity_flavorcapacity
    FOR EACH ROW EXECUTE FUNCTION headroom_track_change();

CREATE OR REPLACE TRIGGER capacity_flavorgroup_log_deletion
    AFTER DELETE ON capacity_flavorgroup REFERENCING OLD TABLE AS gone
    FOR EACH STATEMENT EXECUTE FUNCTION headroom_log_deletion();
CREATE OR REPLACE TRIGGER capacity_flavorgroup_track_change
    BEFORE INSERT OR UPDATE ON capacity_flavorgroup
    FOR EACH ROW EXECUTE FUNCTION headroom_track_change();

CREATE OR REPLACE TRIGGER capacity_flavorgroupsettings_log_deletion
    AFTER DELETE ON capacity_flavorgroupsettings REFERENCING OLD TABLE AS gone
    FOR EACH STATEMENT EXECUTE FUNCTION headroom_log_deletion();
CREATE OR REPLACE TRIGGER capacity_flavorgroupsettings_track_change
    BEFORE INSERT OR UPDATE ON capacity_flavorgroupsettings
    FOR EACH ROW EXECUTE FUNCTION headroom_track_change();

CREATE OR REPLACE TRIGGER capacity_groupcapacity_log_deletion
    AFTER DELETE ON capacity_groupcapacity REFERENCING OLD TABLE AS gone
    FOR EACH STATEMENT EXECUTE FUNCTION headroom_log_deletion();
CREATE OR REPLACE TRIGGER capacity_groupcapacity_log_insert
    AFTER INSERT ON capacity_groupcapacity REFERENCING NEW TABLE AS fresh
    FOR EACH STATEMENT EXECUTE FUNCTION headroom_log_change();
CREATE OR REPLACE TRIGGER capacity_groupcapacity_log_update
    AFTER UPDATE ON capacity_groupcapacity REFERENCING NEW TABLE AS fresh
    FOR EACH STATEMENT EXECUTE FUNCTION headroom_log_change();
CREATE OR REPLACE TRIGGER capacity_groupcapacity_track_change
    BEFORE INSERT OR UPDATE ON capacity_groupcapacity
    FOR EACH ROW EXECUTE FUNCTION headroom_track_change();

CREATE OR REPLACE TRIGGER capacity_hostcapacity_log_deletion
    AFTER DELETE ON capacity_hostcapacity REFERENCING OLD TABLE AS gone
    FOR EACH STATEMENT EXECUTE FUNCTION headroom_log_deletion();
CREATE OR REPLACE TRIGGER capacity_hostcapacity_log_insert
    AFTER INSERT ON capacity_hostcapacity REFERENCING NEW TABLE AS fresh
    FOR EACH STATEMENT EXECUTE FUNCTION headroom_log_change();
CREATE OR REPLACE TRIGGER capacity_hostcapacity_log_update
    AFTER UPDATE ON capacity_hostcapacity REFERENCING NEW TABLE AS fresh
    FOR EACH STATEMENT EXECUTE FUNCTION headroom_log_change();
CREATE OR REPLACE TRIGGER capacity_hostcapacity_track_change
    BEFORE INSERT OR UPDATE ON capacity_hostcapacity
    FOR EACH ROW EXECUTE FUNCTION headroom_track_change();

CREATE OR REPLACE TRIGGER capacity_pipeline_log_deletion
    AFTER DELETE ON capacity_pipeline REFERENCING OLD TABLE AS gone
    FOR EACH STATEMENT EXECUTE FUNCTION headroom_log_deletion();
CREATE OR REPLACE TRIGGER capacity_pipeline_track_change
    BEFORE INSERT OR UPDATE ON capacity_pipeline
    FOR EACH ROW EXECUTE FUNCTION headroom_track_change();

CREATE OR REPLACE TRIGGER capacity_projectquota_log_deletion
    AFTER DELETE ON capacity_projectquota REFERENCING OLD TABLE AS gone
    FOR EACH STATEMENT EXECUTE FUNCTION headroom_log_deletion();
CREATE OR REPLACE TRIGGER capacity_projectquota_log_insert
    AFTER INSERT ON capacity_projectquota REFERENCING NEW TABLE AS fresh
    FOR EACH STATEMENT EXECUTE FUNCTION headroom_log_change();
CREATE OR REPLACE TRIGGER capacity_projectquota_log_update
    AFTER UPDATE ON capacity_projectquota REFERENCING NEW TABLE AS fresh
    FOR EACH STATEMENT EXECUTE FUNCTION headroom_log_change();
CREATE OR REPLACE TRIGGER capacity_projectquota_track_change
    BEFORE INSERT OR UPDATE ON capacity_projectquota
    FOR EACH ROW EXECUTE FUNCTION headroom_track_change();

CREATE OR REPLACE TRIGGER capacity_reservation_log_deletion
    AFTER DELETE ON capacity_reservation REFERENCING OLD TABLE AS gone
    FOR EACH STATEMENT EXECUTE FUNCTION headroom_log_deletion();
CREATE OR REPLACE TRIGGER capacity_reservation_log_insert
    AFTER INSERT ON capacity_reservation REFERENCING NEW TABLE AS fresh
    FOR EACH STATEMENT EXECUTE FUNCTION headroom_log_change();
CREATE OR REPLACE TRIGGER capacity_reservation_log_update
    AFTER UPDATE ON capacity_reservation REFERENCING NEW TABLE AS fresh
    FOR EACH STATEMENT EXECUTE FUNCTION headroom_log_change();
CREATE OR REPLACE TRIGGER capacity_reservation_track_change
    BEFORE INSERT OR UPDATE ON capacity_reservation
    FOR EACH ROW EXECUTE FUNCTION headroom_track_change();

CREATE OR REPLACE TRIGGER capacity_reservationallocation_log_deletion
    AFTER DELETE ON capacity_reservationallocation REFERENCING OLD TABLE AS gone
    FOR EACH STATEMENT EXECUTE FUNCTION headroom_log_deletion();
CREATE OR REPLACE TRIGGER capacity_reservationallocation_log_insert
    AFTER INSERT ON capacity_reservationallocation REFERENCING NEW TABLE AS fresh
    FOR EACH STATEMENT EXECUTE FUNCTION headroom_log_change();
CREATE OR REPLACE TRIGGER capacity_reservationallocation_log_update
    AFTER UPDATE ON capacity_reservationallocation REFERENCING NEW TABLE AS fresh
    FOR EACH STATEMENT EXECUTE FUNCTION headroom_log_change();
-- Not of validated_at, by which validation stamps every user of every failover slot twice an hour: as
-- a change that made every follower read all of them again.
CREATE OR REPLACE TRIGGER capacity_reservationallocation_track_change
    BEFORE INSERT OR UPDATE OF id, changed_xid, created_at, updated_at, vm_uuid, state,
        memory_bytes, vcpus, since, confirmed_at, confirmed_host_id, reservation_id, vm_host_id,
        missing_since ON capacity_reservationallocation
    FOR EACH ROW EXECUTE FUNCTION headroom_track_change();

CREATE OR REPLACE TRIGGER capacity_schedulingknowledge_log_deletion
    AFTER DELETE ON capacity_schedulingknowledge REFERENCING OLD TABLE AS gone
    FOR EACH STATEMENT EXECUTE FUNCTION headroom_log_deletion();
CREATE OR REPLACE TRIGGER capacity_schedulingknowledge_track_change
    BEFORE INSERT OR UPDATE ON capacity_schedulingknowledge
    FOR EACH ROW EXECUTE FUNCTION headroom_track_change();

-- What was written before a table had its triggers is in no log: positions of that time are told to
-- read everything anew. CREATE TRIGGER waits for writers, so who begins later is logged.
INSERT INTO journal_prunedlog (log, pruned_xid)
SELECT 'deletions', pg_current_xact_id()::text::bigint
 WHERE EXISTS (SELECT FROM capacity_hostcapacity)
    OR EXISTS (SELECT FROM capacity_groupcapacity)
    OR EXISTS (SELECT FROM capacity_projectquota)
    OR EXISTS (SELECT FROM capacity_reservation)
    OR EXISTS (SELECT FROM capacity_reservationallocation)
    ON CONFLICT (log) DO UPDATE SET pruned_xid = excluded.pruned_xid;
