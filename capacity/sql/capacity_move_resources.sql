-- HostResource.reserved follows what slots hold, in the statement that writes them (spec hosts, D.12).
-- What comes to a host from nowhere, and what grows there by its size, needs room; what moves from
-- another host with its VMs, and what a slot gets back when a VM leaves it, is counted as it is. What
-- slots left behind in the same transaction makes room, as agents remove before they make. Rows are
-- locked by host and in the fixed order of the resources, under the lock of the host's room.
CREATE OR REPLACE FUNCTION capacity_move_resources() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    v_change record;
    v_place record;
    v_before bigint[] := '{}';
    v_after bigint[] := '{}';
    v_held bigint[] := '{0,0,0}';
    v_holds bigint[] := '{0,0,0}';
    v_needs_room boolean := true;
    v_has_room boolean;
BEGIN
    IF TG_OP <> 'INSERT' THEN
        v_before := ARRAY[OLD.target_host_id, OLD.confirmed_host_id];
        v_held := ARRAY[OLD.held_network_bps, OLD.held_disk_io_bps, OLD.held_gpus];
    END IF;
    IF TG_OP <> 'DELETE' THEN
        v_after := ARRAY[NEW.target_host_id, NEW.confirmed_host_id];
        v_holds := ARRAY[NEW.held_network_bps, NEW.held_disk_io_bps, NEW.held_gpus];
    END IF;
    IF TG_OP = 'UPDATE' THEN
        IF (v_held, v_before) IS NOT DISTINCT FROM (v_holds, v_after) THEN
            RETURN NULL;
        END IF;
        v_needs_room := coalesce(OLD.target_host_id, OLD.confirmed_host_id) IS NULL
                        OR NEW.memory_bytes > OLD.memory_bytes;
    END IF;
    FOR v_change IN
        SELECT place.host_id, kind.resource,
               CASE WHEN place.host_id = ANY (v_after) THEN kind.holds ELSE 0 END
                   - CASE WHEN place.host_id = ANY (v_before) THEN kind.held ELSE 0 END AS amount
          FROM (SELECT DISTINCT unnest(v_before || v_after) AS host_id) AS place
         CROSS JOIN unnest('{network,disk_io,gpu}'::text[], v_held, v_holds)
               WITH ORDINALITY AS kind (resource, held, holds, place)
         WHERE place.host_id IS NOT NULL
         ORDER BY place.host_id, kind.place
    LOOP
        CONTINUE WHEN v_change.amount = 0;
        -- A host of which nothing is known yet has its row from here on, so that none is lost. What is
        -- lacking is taken once from what was left behind; under the lock of the room that is enough.
        FOR v_try IN 1..3 LOOP
            INSERT INTO hosts_hostresource AS place (host_id, resource, source, reserved)
            VALUES (v_change.host_id, v_change.resource, 'unknown', greatest(v_change.amount, 0))
            ON CONFLICT (host_id, resource) DO UPDATE
               SET reserved = greatest(place.reserved + v_change.amount, 0)
             WHERE v_change.amount < 0 OR NOT v_needs_room OR place.source = 'unknown'
                OR NOT place.is_stale
                   AND place.effective_capacity - place.allocated - place.reserved
                       >= v_change.amount;
            v_has_room := FOUND;
            EXIT WHEN v_has_room;
            WITH kept AS (
                SELECT room.id, CASE v_change.resource WHEN 'network' THEN room.network_bps
                       WHEN 'disk_io' THEN room.disk_io_bps ELSE room.gpus END AS held
                  FROM capacity_leavingroom AS room
                 WHERE room.host_id = v_change.host_id
                   AND room.left_xid = pg_current_xact_id()::text::bigint
            ), lacking AS (
                SELECT v_change.amount - place.effective_capacity + place.allocated
                       + place.reserved AS amount
                  FROM hosts_hostresource AS place
                 WHERE place.host_id = v_change.host_id AND place.resource = v_change.resource
                   AND NOT place.is_stale
            ), given AS (
                SELECT kept.id, least(kept.held, lacking.amount - coalesce(
                           sum(kept.held) OVER (ORDER BY kept.id ROWS BETWEEN UNBOUNDED PRECEDING
                                                                      AND 1 PRECEDING), 0)
                       )::bigint AS amount
                  FROM kept CROSS JOIN lacking
            )
            UPDATE capacity_leavingroom AS room
               SET network_bps = room.network_bps
                       - CASE v_change.resource WHEN 'network' THEN given.amount ELSE 0 END,
                   disk_io_bps = room.disk_io_bps
                       - CASE v_change.resource WHEN 'disk_io' THEN given.amount ELSE 0 END,
                   gpus = room.gpus
                       - CASE v_change.resource WHEN 'gpu' THEN given.amount ELSE 0 END
              FROM given WHERE given.id = room.id AND given.amount > 0;
            EXIT WHEN NOT FOUND;
        END LOOP;
        IF NOT v_has_room THEN
            SELECT * INTO v_place FROM hosts_hostresource AS place
             WHERE place.host_id = v_change.host_id AND place.resource = v_change.resource;
            RAISE EXCEPTION USING
                ERRCODE = 'check_violation',
                CONSTRAINT = 'hosts_resource_has_room',
                MESSAGE = format(
                    '%s: requested %s, available %s', v_change.resource, v_change.amount,
                    CASE WHEN v_place.is_stale THEN 0
                         ELSE greatest(v_place.effective_capacity - v_place.allocated
                                       - v_place.reserved, 0) END),
                DETAIL = json_build_object(
                    'host', v_change.host_id, 'resource', v_change.resource,
                    'requested', v_change.amount, 'allocated', v_place.allocated,
                    'reserved', v_place.reserved, 'effective_limit', v_place.effective_capacity,
                    'stale', v_place.is_stale)::text;
        END IF;
    END LOOP;
    RETURN NULL;
END
$$;

CREATE OR REPLACE TRIGGER capacity_reservation_move_resources_insert
    AFTER INSERT ON capacity_reservation
    FOR EACH ROW WHEN (NEW.held_network_bps + NEW.held_disk_io_bps + NEW.held_gpus > 0)
    EXECUTE FUNCTION capacity_move_resources();
CREATE OR REPLACE TRIGGER capacity_reservation_move_resources_update
    AFTER UPDATE ON capacity_reservation
    FOR EACH ROW WHEN (greatest(OLD.held_network_bps, OLD.held_disk_io_bps, OLD.held_gpus,
                                NEW.held_network_bps, NEW.held_disk_io_bps, NEW.held_gpus) > 0)
    EXECUTE FUNCTION capacity_move_resources();
CREATE OR REPLACE TRIGGER capacity_reservation_move_resources_delete
    AFTER DELETE ON capacity_reservation
    FOR EACH ROW WHEN (OLD.held_network_bps + OLD.held_disk_io_bps + OLD.held_gpus > 0)
    EXECUTE FUNCTION capacity_move_resources();
