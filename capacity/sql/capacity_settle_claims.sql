-- Settles what consumers of Placement hold on hosts (ADR 0029): ends their in-flight rows, lets
-- them leave, keep and join slots of their project, and counts what slots block. One call for all
-- consumers of one write, in its transaction.
--
-- p_consumers: who was written. p_hosts: hosts whose trees of providers changed. p_pieces: what the
-- consumers hold now, one object for each of their hosts: vm, project, host, memory_bytes, vcpus
-- and classes (amount by resource class).
--
-- Returns what was taken of each locked host before (VMs and holds, what is blocked twice once) and by
-- how much its holds grew, and the failover reservations that evacuated VMs use now, as rows without a
-- host. The caller writes the rooms: what VMs take of them is its to count.
-- Locks rooms by primary key, then slots. A table that the server last looked at when it was empty is
-- never read whole: only bitmaps are made, of what an index finds; and of reservations only what a key
-- finds, as the index of their kinds finds the whole region (OFFSET 0 keeps it from being asked). All else
-- of how statements are planned is its caller's business.
CREATE OR REPLACE FUNCTION capacity_settle_claims(
    p_consumers text[], p_hosts bigint[], p_pieces jsonb
) RETURNS TABLE (
    host_id bigint, memory_bytes bigint, vcpus bigint, committed_memory_bytes bigint,
    committed_vcpus bigint, in_flight_memory_bytes bigint, in_flight_vcpus bigint,
    failover_id bigint
) LANGUAGE plpgsql
SET enable_indexscan = off SET enable_indexonlyscan = off AS $$
#variable_conflict use_column
DECLARE
    v_hosts bigint[];
    v_room record;
    v_rooms bigint[] := '{}';
    v_before_memory_bytes bigint[] := '{}';
    v_before_vcpus bigint[] := '{}';
    v_committed_memory_bytes bigint[];
    v_committed_vcpus bigint[];
    v_in_flight_memory_bytes bigint[];
    v_in_flight_vcpus bigint[];
    v_is_held boolean := false;
    v_own bigint[];
    v_flights bigint[];
    v_flown jsonb;
    v_flight record;
    v_places bigint[] := '{}';
    v_projects text[] := '{}';
    v_slots bigint[];
    v_touched bigint[] := '{}';
    v_more bigint[];
    v_piece record;
    v_memory_bytes bigint;
    v_vcpus bigint;
    v_left bigint[];
    v_groups text[];
    v_is_expected boolean;
    v_is_moving boolean;
    v_offered text[];
    v_block record;
    v_host bigint;
    v_place integer;
    v_old record;
    v_heir text;
    v_holds boolean := p_pieces <> '[]';
BEGIN
    v_hosts := p_hosts || ARRAY(
        SELECT flight.target_host_id FROM capacity_reservation AS flight
         WHERE flight.kind = 'in_flight' AND flight.vm_uuid = ANY(p_consumers)
         UNION ALL
        SELECT unnest(ARRAY[slot.target_host_id, slot.confirmed_host_id])
          FROM (SELECT vm.reservation_id FROM capacity_reservationallocation AS vm
                 WHERE vm.vm_uuid = ANY(p_consumers) OFFSET 0) AS vm
          JOIN LATERAL (
               SELECT slot.kind, slot.target_host_id, slot.confirmed_host_id
                 FROM capacity_reservation AS slot
                WHERE slot.id = vm.reservation_id OFFSET 0) AS slot ON slot.kind = 'committed');
    v_hosts := array_remove(v_hosts, NULL);
    IF cardinality(v_hosts) = 0 THEN
        RETURN;
    END IF;
    FOR look IN 1 .. 4 LOOP
        FOR v_room IN
            SELECT room.host_id, room.allocated_memory_bytes + room.committed_memory_bytes
                       + room.failover_memory_bytes + room.in_flight_memory_bytes AS memory_bytes,
                   room.allocated_vcpus + room.committed_vcpus + room.failover_vcpus
                       + room.in_flight_vcpus AS vcpus,
                   room.effective_memory_bytes, room.effective_vcpus, room.in_flight_memory_bytes,
                   room.committed_memory_bytes > 0 OR room.committed_vcpus > 0 AS is_held
              FROM capacity_hostcapacity AS room
             WHERE room.host_id = ANY(v_hosts) ORDER BY room.id FOR NO KEY UPDATE
        LOOP
            CONTINUE WHEN v_room.host_id = ANY(v_rooms);
            IF v_room.in_flight_memory_bytes > 0
               AND (v_room.memory_bytes > v_room.effective_memory_bytes
                    OR v_room.vcpus > v_room.effective_vcpus) THEN
                SELECT v_room.memory_bytes - twice.memory_bytes, v_room.vcpus - twice.vcpus
                  INTO v_room.memory_bytes, v_room.vcpus
                  FROM capacity_blocked_twice(v_room.host_id) AS twice;
            END IF;
            v_rooms := v_rooms || v_room.host_id;
            v_before_memory_bytes := v_before_memory_bytes || v_room.memory_bytes;
            v_before_vcpus := v_before_vcpus || v_room.vcpus;
            v_is_held := v_is_held OR v_room.is_held;
        END LOOP;
        -- What was held in flight while the rooms were waited for has no more to wait for either.
        SELECT ARRAY(SELECT flight.target_host_id FROM capacity_reservation AS flight
                      WHERE flight.kind = 'in_flight' AND flight.vm_uuid = ANY(p_consumers)),
               ARRAY(SELECT vm.reservation_id FROM capacity_reservationallocation AS vm
                      WHERE vm.vm_uuid = ANY(p_consumers))
          INTO v_flights, v_own;
        EXIT WHEN v_flights <@ v_hosts OR look = 4;  -- rows on other hosts end by their time
        v_hosts := v_hosts || v_flights;
    END LOOP;
    v_committed_memory_bytes := array_fill(0::bigint, ARRAY[cardinality(v_rooms)]);
    v_committed_vcpus := v_committed_memory_bytes;
    v_in_flight_memory_bytes := v_committed_memory_bytes;
    v_in_flight_vcpus := v_committed_memory_bytes;

    -- In-flight rows have done their work, on all hosts; the flavor that they knew is kept.
    IF cardinality(v_flights) > 0 THEN
        v_flown := '{}';
        FOR v_flight IN
            DELETE FROM capacity_reservation AS flight
             WHERE flight.kind = 'in_flight' AND flight.vm_uuid = ANY(p_consumers)
               AND flight.target_host_id = ANY(v_hosts)
            RETURNING flight.vm_uuid, flight.flavor_group_name, flight.intent, flight.target_host_id,
                      flight.blocked_memory_bytes, flight.blocked_vcpus
        LOOP
            v_flown := v_flown || jsonb_build_object(
                v_flight.vm_uuid, jsonb_build_array(v_flight.flavor_group_name, v_flight.intent));
            v_place := array_position(v_rooms, v_flight.target_host_id);
            CONTINUE WHEN v_place IS NULL;
            v_in_flight_memory_bytes[v_place] :=
                v_in_flight_memory_bytes[v_place] - v_flight.blocked_memory_bytes;
            v_in_flight_vcpus[v_place] := v_in_flight_vcpus[v_place] - v_flight.blocked_vcpus;
        END LOOP;
    END IF;

    -- A slot that blocks nothing has no room for a VM either.
    IF cardinality(v_own) > 0 OR v_is_held OR NOT p_hosts <@ v_rooms THEN
        FOR place IN 0 .. jsonb_array_length(p_pieces) - 1 LOOP
            v_places := v_places || (p_pieces -> place ->> 'host')::bigint;
            v_projects := v_projects || (p_pieces -> place ->> 'project');
        END LOOP;
        v_more := ARRAY(
            SELECT slot.id
              FROM (SELECT held.id, held.kind FROM capacity_reservation AS held
                     WHERE held.id = ANY(v_own)
                     UNION ALL
                    SELECT held.id, held.kind
                      FROM (SELECT * FROM capacity_reservation AS held
                             WHERE held.target_host_id = ANY(v_places) OFFSET 0) AS held
                     WHERE held.project_id = ANY(v_projects)
                       AND (held.blocked_memory_bytes > 0 OR held.blocked_vcpus > 0)
                    OFFSET 0) AS slot
             WHERE slot.kind = 'committed');
        SELECT array_agg(held.id),
               array_agg(held.group_name) FILTER (WHERE held.is_ready AND held.group_name <> '')
          INTO v_slots, v_offered
          FROM (SELECT held.id, held.is_ready, held.flavor_group_name::text AS group_name
                  FROM capacity_reservation AS held
                 WHERE held.id = ANY(v_more) ORDER BY held.id FOR NO KEY UPDATE) AS held;
    END IF;

    IF cardinality(v_slots) > 0 THEN
        -- Who holds now what another of the write gave up on the same host goes into its slots:
        -- so Nova hands a VM to its migration, and back.
        IF cardinality(p_consumers) > 1 THEN
            FOR v_old IN
                SELECT vm.vm_uuid, slot.target_host_id AS host, slot.project_id,
                       sum(vm.memory_bytes) AS memory_bytes, sum(vm.vcpus) AS vcpus
                  FROM capacity_reservationallocation AS vm
                  JOIN capacity_reservation AS slot ON slot.id = vm.reservation_id
                 WHERE vm.vm_uuid = ANY(p_consumers) AND slot.id = ANY(v_slots)
                   AND slot.target_host_id IS NOT NULL
                   AND NOT EXISTS (
                        SELECT FROM jsonb_to_recordset(p_pieces) AS own(vm text, host bigint)
                         WHERE own.vm = vm.vm_uuid AND own.host = slot.target_host_id)
                 GROUP BY vm.vm_uuid, slot.target_host_id, slot.project_id
            LOOP
                SELECT piece.vm INTO v_heir
                  FROM jsonb_to_recordset(p_pieces) AS piece(
                       vm text, project text, host bigint, memory_bytes bigint, vcpus bigint)
                 WHERE piece.host = v_old.host AND piece.project = v_old.project_id
                   AND piece.memory_bytes = v_old.memory_bytes AND piece.vcpus = v_old.vcpus
                   AND NOT EXISTS (
                        SELECT FROM capacity_reservationallocation AS vm
                          JOIN capacity_reservation AS slot ON slot.id = vm.reservation_id
                         WHERE vm.vm_uuid = piece.vm AND slot.kind = 'committed'
                           AND vm.state = 'confirmed' AND slot.target_host_id = v_old.host)
                 ORDER BY piece.vm LIMIT 1;
                IF FOUND THEN
                    -- Where it was awaited there meanwhile, it has come now.
                    WITH gone AS (
                        DELETE FROM capacity_reservationallocation AS vm
                         USING capacity_reservation AS slot
                         WHERE vm.vm_uuid = v_heir AND slot.id = vm.reservation_id
                           AND slot.kind = 'committed' AND slot.target_host_id = v_old.host
                        RETURNING vm.reservation_id)
                    SELECT array_agg(gone.reservation_id) INTO v_more FROM gone;
                    v_touched := v_touched || coalesce(v_more, '{}');
                    UPDATE capacity_reservationallocation AS vm SET vm_uuid = v_heir
                      FROM capacity_reservation AS slot
                     WHERE vm.vm_uuid = v_old.vm_uuid AND slot.id = vm.reservation_id
                       AND slot.kind = 'committed' AND slot.target_host_id = v_old.host;
                END IF;
            END LOOP;
        END IF;

        IF cardinality(v_own) > 0 THEN
            WITH gone AS (
                DELETE FROM capacity_reservationallocation AS vm
                 USING capacity_reservation AS slot
                 WHERE vm.vm_uuid = ANY(p_consumers) AND slot.id = vm.reservation_id
                   AND slot.id = ANY(v_slots)
                   AND NOT EXISTS (
                        SELECT FROM jsonb_to_recordset(p_pieces) AS piece(
                               vm text, host bigint, memory_bytes bigint)
                         WHERE piece.vm = vm.vm_uuid AND piece.memory_bytes > 0
                           AND piece.host IN (slot.target_host_id, slot.confirmed_host_id))
                RETURNING vm.reservation_id)
            SELECT array_agg(gone.reservation_id) INTO v_more FROM gone;
            v_touched := v_touched || coalesce(v_more, '{}');
        END IF;

        IF v_holds THEN  -- else all of them have left
            FOR v_piece IN
                SELECT * FROM jsonb_to_recordset(p_pieces) AS piece(
                       vm text, project text, host bigint, memory_bytes bigint, vcpus bigint,
                       classes jsonb)
                 WHERE piece.memory_bytes > 0 ORDER BY piece.vm, piece.host
            LOOP
                v_left := NULL;
                IF cardinality(v_own) > 0 THEN
                    SELECT sum(vm.memory_bytes)::bigint, sum(vm.vcpus)::bigint,
                           array_agg(vm.reservation_id), array_agg(slot.flavor_group_name::text),
                           bool_or(vm.state = 'expected'),
                           bool_or(slot.confirmed_host_id IS DISTINCT FROM slot.target_host_id)
                      INTO v_memory_bytes, v_vcpus, v_left, v_groups, v_is_expected, v_is_moving
                      FROM capacity_reservationallocation AS vm
                      JOIN capacity_reservation AS slot ON slot.id = vm.reservation_id
                     WHERE vm.vm_uuid = v_piece.vm AND slot.id = ANY(v_slots)
                       AND v_piece.host IN (slot.target_host_id, slot.confirmed_host_id);
                END IF;
                IF v_left IS NOT NULL THEN
                    CONTINUE WHEN v_is_moving;
                    IF (v_memory_bytes, v_vcpus) = (v_piece.memory_bytes, v_piece.vcpus) THEN
                        IF v_is_expected THEN
                            UPDATE capacity_reservationallocation AS vm
                               SET state = 'confirmed', confirmed_host_id = v_piece.host,
                                   confirmed_at = statement_timestamp(), missing_since = NULL
                             WHERE vm.vm_uuid = v_piece.vm AND vm.reservation_id = ANY(v_left);
                            v_touched := v_touched || v_left;
                        END IF;
                        CONTINUE;
                    END IF;
                END IF;
                CONTINUE WHEN v_left IS NULL AND v_offered IS NULL;
                v_touched := v_touched || capacity_join_slots(
                    v_piece.vm, v_piece.host, v_piece.project, v_piece.memory_bytes, v_piece.vcpus,
                    coalesce(v_left, '{}'),
                    CASE WHEN v_flown ? v_piece.vm THEN ARRAY[v_flown #>> ARRAY[v_piece.vm, '0']]
                         ELSE capacity_groups_of_claim(v_piece.vm, v_piece.memory_bytes, v_piece.vcpus,
                                                       v_piece.classes, v_offered) END
                    || CASE WHEN v_left IS NOT NULL AND v_piece.memory_bytes <= v_memory_bytes
                                 AND v_piece.vcpus <= v_vcpus
                            THEN v_groups ELSE '{}' END,
                    v_slots);
            END LOOP;

            IF cardinality(v_own) > 0 THEN
                SELECT v_touched || coalesce(array_agg(vm.reservation_id), '{}') INTO v_touched
                  FROM capacity_reservationallocation AS vm
                 WHERE vm.vm_uuid = ANY(p_consumers) AND vm.state = 'expected'
                   AND vm.reservation_id = ANY(v_slots);
            END IF;
        END IF;

        FOR v_block IN SELECT * FROM capacity_block_slots(v_touched)
        LOOP
            FOREACH v_host IN ARRAY ARRAY[v_block.target_host_id,
                nullif(v_block.confirmed_host_id, v_block.target_host_id)]
            LOOP
                CONTINUE WHEN v_host IS NULL;
                v_place := array_position(v_rooms, v_host);
                IF v_place IS NULL THEN  -- it came there after the first look
                    UPDATE capacity_hostcapacity AS room
                       SET committed_memory_bytes = room.committed_memory_bytes
                               + v_block.memory_bytes,
                           committed_vcpus = room.committed_vcpus + v_block.vcpus
                     WHERE room.host_id = v_host;
                    CONTINUE;
                END IF;
                v_committed_memory_bytes[v_place] :=
                    v_committed_memory_bytes[v_place] + v_block.memory_bytes;
                v_committed_vcpus[v_place] := v_committed_vcpus[v_place] + v_block.vcpus;
            END LOOP;
        END LOOP;
    END IF;

    FOR place IN 1 .. cardinality(v_rooms) LOOP
        host_id := v_rooms[place];
        memory_bytes := v_before_memory_bytes[place];
        vcpus := v_before_vcpus[place];
        committed_memory_bytes := v_committed_memory_bytes[place];
        committed_vcpus := v_committed_vcpus[place];
        in_flight_memory_bytes := v_in_flight_memory_bytes[place];
        in_flight_vcpus := v_in_flight_vcpus[place];
        RETURN NEXT;
    END LOOP;
    IF cardinality(v_own) = 0 OR NOT v_holds THEN
        RETURN;
    END IF;
    -- A VM that comes while it is on another host, or its own host is lost, is evacuated.
    RETURN QUERY
    SELECT DISTINCT NULL::bigint, NULL::bigint, NULL::bigint, NULL::bigint, NULL::bigint,
           NULL::bigint, NULL::bigint, spare.id
      FROM (SELECT vm.vm_uuid, vm.reservation_id FROM capacity_reservationallocation AS vm
             WHERE vm.vm_uuid = ANY(p_consumers) OFFSET 0) AS own  -- not by the reservations
      JOIN LATERAL (
           SELECT spare.id, spare.kind, spare.is_ready, spare.target_host_id
             FROM capacity_reservation AS spare
            WHERE spare.id = own.reservation_id OFFSET 0) AS spare
        ON spare.kind = 'failover' AND spare.is_ready
      JOIN jsonb_to_recordset(p_pieces) AS piece(vm text, host bigint, memory_bytes bigint)
        ON piece.vm = own.vm_uuid AND piece.host = spare.target_host_id
     WHERE piece.memory_bytes > 0 AND piece.host = ANY(p_hosts)
       AND (v_flown #>> ARRAY[piece.vm, '1'] = 'evacuate'
            OR EXISTS (
                SELECT FROM jsonb_to_recordset(p_pieces) AS other(vm text, host bigint)
                 WHERE other.vm = piece.vm AND other.host <> piece.host)
            OR EXISTS (
                SELECT FROM hosts_instance AS vm
                  JOIN hosts_host AS home ON home.id = vm.host_id
                 WHERE vm.openstack_id = piece.vm AND home.id <> piece.host
                   AND home.is_lost));
END
$$;
