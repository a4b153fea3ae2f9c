-- HostResource.reserved has as well what slots held that left, until their agents gave it back (spec
-- hosts, D.12). It was counted before, so no room is asked for. Rows are locked in the fixed order of
-- the resources, under the lock of the host's room.
CREATE OR REPLACE FUNCTION capacity_keep_resources() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    v_change record;
    v_host bigint;
    v_held bigint[] := '{0,0,0}';
    v_holds bigint[] := '{0,0,0}';
BEGIN
    IF TG_OP <> 'INSERT' THEN
        v_host := OLD.host_id;
        v_held := ARRAY[OLD.network_bps, OLD.disk_io_bps, OLD.gpus];
    END IF;
    IF TG_OP <> 'DELETE' THEN
        v_host := NEW.host_id;
        v_holds := ARRAY[NEW.network_bps, NEW.disk_io_bps, NEW.gpus];
    END IF;
    FOR v_change IN
        SELECT kind.resource, kind.holds - kind.held AS amount
          FROM unnest('{network,disk_io,gpu}'::text[], v_held, v_holds)
               WITH ORDINALITY AS kind (resource, held, holds, place)
         WHERE kind.holds <> kind.held
         ORDER BY kind.place
    LOOP
        -- The slot that held it has left a row.
        UPDATE hosts_hostresource AS place
           SET reserved = greatest(place.reserved + v_change.amount, 0)
         WHERE place.host_id = v_host AND place.resource = v_change.resource;
    END LOOP;
    RETURN NULL;
END
$$;

CREATE OR REPLACE TRIGGER capacity_leavingroom_keep_resources_insert
    AFTER INSERT ON capacity_leavingroom
    FOR EACH ROW WHEN (NEW.network_bps + NEW.disk_io_bps + NEW.gpus > 0)
    EXECUTE FUNCTION capacity_keep_resources();
CREATE OR REPLACE TRIGGER capacity_leavingroom_keep_resources_update
    AFTER UPDATE ON capacity_leavingroom
    FOR EACH ROW WHEN ((OLD.network_bps, OLD.disk_io_bps, OLD.gpus)
                       IS DISTINCT FROM (NEW.network_bps, NEW.disk_io_bps, NEW.gpus))
    EXECUTE FUNCTION capacity_keep_resources();
CREATE OR REPLACE TRIGGER capacity_leavingroom_keep_resources_delete
    AFTER DELETE ON capacity_leavingroom
    FOR EACH ROW WHEN (OLD.network_bps + OLD.disk_io_bps + OLD.gpus > 0)
    EXECUTE FUNCTION capacity_keep_resources();
