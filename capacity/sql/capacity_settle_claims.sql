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
-- never read whole: only bitmaps are made, of what an index finds.
CREATE OR REPLACE FUNCTION capacity_settle_claims(
    p_consumers text[], p_hosts bigint[], p_pieces jsonb
) RETURNS TABLE (
    host_id bigint, memory_bytes bigint, vcpus bigint, committed_memory_bytes bigint,
    committed_vcpus bigint, in_flight_memory_bytes bigint, in_flight_vcpus bigint,
    failover_id bigint
) LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_indexscan = off
SET enable_indexonlyscan = off SET jit = off AS $$
#variable_conflict use_column
DECLARE
    v_hosts bigint[];
    v_rooms bigint[];
    v_before_memory_bytes bigint[];
    v_before_vcpus bigint[];
    v_own bigint[];
    v_flights bigint[];
    v_flown jsonb;
    v_ended bigint[] := '{}';
    v_ended_memory_bytes bigint[];
    v_ended_vcpus bigint[];
    v_blocked bigint[] := '{}';
    v_blocked_memory_bytes bigint[];
    v_blocked_vcpus bigint[];
    v_places bigint[];
    v_projects text[];
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
    v_old record;
    v_heir text;
BEGIN
    SELECT array_agg(DISTINCT h.id) INTO v_hosts FROM (
        SELECT unnest(p_hosts) AS id
         UNION
        SELECT flight.target_host_id FROM capacity_reservation AS flight
         WHERE flight.kind = 'in_flight' AND flight.vm_uuid = ANY(p_consumers)
         UNION
        SELECT unnest(ARRAY[slot.target_host_id, slot.confirmed_host_id])
          FROM capacity_reservationallocation AS vm
          JOIN capacity_reservation AS slot ON slot.id = vm.reservation_id
           AND slot.kind = 'committed'
         WHERE vm.vm_uuid = ANY(p_consumers)) AS h
     WHERE h.id IS NOT NULL;
    IF v_hosts IS NULL THEN
        RETURN;
    END IF;
    PERFORM FROM capacity_hostcapacity AS room
      WHERE room.host_id = ANY(v_hosts) ORDER BY room.id FOR NO KEY UPDATE;
    -- What was held in flight while the rooms were waited for has no more to wait for either.
    SELECT array_agg(flight.target_host_id),
           array_agg(DISTINCT flight.target_host_id)
               FILTER (WHERE flight.target_host_id <> ALL(v_hosts))
      INTO v_flights, v_more
      FROM capacity_reservation AS flight
     WHERE flight.kind = 'in_flight' AND flight.vm_uuid = ANY(p_consumers);
    IF v_more IS NOT NULL THEN
        PERFORM FROM capacity_hostcapacity AS room
          WHERE room.host_id = ANY(v_more) ORDER BY room.id FOR NO KEY UPDATE;
        v_hosts := v_hosts || v_more;
    END IF;
    SELECT array_agg(room.host_id),
           array_agg(taken.memory_bytes - coalesce(twice.memory_bytes, 0)),
           array_agg(taken.vcpus - coalesce(twice.vcpus, 0))
      INTO v_rooms, v_before_memory_bytes, v_before_vcpus
      FROM capacity_hostcapacity AS room
     CROSS JOIN LATERAL (
           SELECT room.allocated_memory_bytes + room.committed_memory_bytes
                      + room.failover_memory_bytes + room.in_flight_memory_bytes AS memory_bytes,
                  room.allocated_vcpus + room.committed_vcpus + room.failover_vcpus
                      + room.in_flight_vcpus AS vcpus) AS taken
      LEFT JOIN LATERAL capacity_blocked_twice(room.host_id) AS twice
        ON room.in_flight_memory_bytes > 0
       AND (taken.memory_bytes > room.effective_memory_bytes
            OR taken.vcpus > room.effective_vcpus)
     WHERE room.host_id = ANY(v_hosts);

    -- In-flight rows have done their work, on all hosts; the flavor that they knew is kept.
    IF v_flights IS NOT NULL THEN
        WITH gone AS (
            DELETE FROM capacity_reservation AS flight
             WHERE flight.kind = 'in_flight' AND flight.vm_uuid = ANY(p_consumers)
               AND flight.target_host_id = ANY(v_hosts)
            RETURNING flight.vm_uuid, flight.flavor_group_name, flight.intent, flight.target_host_id,
                      flight.blocked_memory_bytes, flight.blocked_vcpus)
        SELECT jsonb_object_agg(gone.vm_uuid,
                                jsonb_build_array(gone.flavor_group_name, gone.intent)),
               array_agg(gone.target_host_id), array_agg(-gone.blocked_memory_bytes),
               array_agg(-gone.blocked_vcpus)
          INTO v_flown, v_ended, v_ended_memory_bytes, v_ended_vcpus FROM gone;
    END IF;

    SELECT array_agg(vm.reservation_id) INTO v_own
      FROM capacity_reservationallocation AS vm WHERE vm.vm_uuid = ANY(p_consumers);
    SELECT array_agg(DISTINCT piece.host), array_agg(DISTINCT piece.project)
      INTO v_places, v_projects
      FROM jsonb_to_recordset(p_pieces) AS piece(project text, host bigint);
    SELECT array_agg(slot.id) INTO v_slots FROM (
        SELECT held.id FROM capacity_reservation AS held
         WHERE held.kind = 'committed'
           AND (held.id = ANY(v_own)
                OR held.target_host_id = ANY(v_places) AND held.project_id = ANY(v_projects))
         ORDER BY held.id FOR NO KEY UPDATE) AS slot;

    IF v_slots IS NOT NULL THEN
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

        IF v_own IS NOT NULL THEN
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

        FOR v_piece IN
            SELECT * FROM jsonb_to_recordset(p_pieces) AS piece(
                   vm text, project text, host bigint, memory_bytes bigint, vcpus bigint,
                   classes jsonb)
             WHERE piece.memory_bytes > 0 ORDER BY piece.vm, piece.host
        LOOP
            v_left := NULL;
            IF v_own IS NOT NULL THEN
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
            SELECT array_agg(DISTINCT slot.flavor_group_name::text) INTO v_offered
              FROM capacity_reservation AS slot
             WHERE slot.id = ANY(v_slots) AND slot.is_ready AND slot.flavor_group_name <> ''
               AND slot.project_id = v_piece.project AND slot.target_host_id = v_piece.host;
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

        -- What the slots block now (capacity.ledger.rooms.WANTED_BLOCKS, in the same words).
        IF v_own IS NOT NULL THEN
            SELECT v_touched || coalesce(array_agg(vm.reservation_id), '{}') INTO v_touched
              FROM capacity_reservationallocation AS vm
             WHERE vm.vm_uuid = ANY(p_consumers) AND vm.state = 'expected'
               AND vm.reservation_id = ANY(v_slots);
        END IF;
        FOR v_block IN SELECT * FROM (SELECT held.id, held.kind, held.target_host_id, held.confirmed_host_id,
       held.blocked_memory_bytes, held.blocked_vcpus,
       CASE WHEN held.target_host_id IS NULL THEN 0
            WHEN held.kind <> 'committed' THEN held.memory_bytes
            ELSE greatest(held.memory_bytes - vms.seen_memory_bytes, vms.due_memory_bytes)
        END AS wanted_memory_bytes,
       CASE WHEN held.target_host_id IS NULL THEN 0
            WHEN held.kind <> 'committed' THEN held.vcpus
            ELSE greatest(held.vcpus - vms.seen_vcpus, vms.due_vcpus)
        END AS wanted_vcpus
  FROM capacity_reservation AS held
 CROSS JOIN LATERAL (
       SELECT coalesce(sum(vm.memory_bytes) FILTER (WHERE vm.is_seen), 0)::bigint
                  AS seen_memory_bytes,
              coalesce(sum(vm.vcpus) FILTER (WHERE vm.is_seen), 0)::bigint AS seen_vcpus,
              coalesce(sum(vm.memory_bytes) FILTER (WHERE vm.is_due), 0)::bigint
                  AS due_memory_bytes,
              coalesce(sum(vm.vcpus) FILTER (WHERE vm.is_due), 0)::bigint AS due_vcpus
         FROM (SELECT vm.memory_bytes, vm.vcpus, vm.state = 'confirmed' AND held.confirmed_host_id = held.target_host_id AS is_seen, 
vm.state = 'expected' AND NOT (
    EXISTS (SELECT FROM capacity_reservation AS flight
             WHERE flight.kind = 'in_flight' AND flight.vm_uuid = vm.vm_uuid
               AND flight.target_host_id = held.target_host_id)
    AND (held.confirmed_host_id IS NULL OR held.confirmed_host_id = held.target_host_id
         OR EXISTS (SELECT FROM capacity_reservation AS flight
                     WHERE flight.kind = 'in_flight' AND flight.vm_uuid = vm.vm_uuid
                       AND flight.target_host_id = held.confirmed_host_id)))
 AS is_due
                 FROM capacity_reservationallocation AS vm WHERE vm.reservation_id = held.id
               OFFSET 0) AS vm
       ) AS vms
         WHERE held.id = ANY(v_touched)) AS wanted
             WHERE (wanted.blocked_memory_bytes, wanted.blocked_vcpus)
                   IS DISTINCT FROM (wanted.wanted_memory_bytes, wanted.wanted_vcpus)
        LOOP
            UPDATE capacity_reservation AS held
               SET blocked_memory_bytes = v_block.wanted_memory_bytes,
                   blocked_vcpus = v_block.wanted_vcpus
             WHERE held.id = v_block.id;
            FOREACH v_host IN ARRAY ARRAY[v_block.target_host_id,
                nullif(v_block.confirmed_host_id, v_block.target_host_id)]
            LOOP
                CONTINUE WHEN v_host IS NULL;
                IF (v_host = ANY(v_rooms)) IS NOT TRUE THEN  -- it came there after the first look
                    UPDATE capacity_hostcapacity AS room
                       SET committed_memory_bytes = room.committed_memory_bytes
                               + v_block.wanted_memory_bytes - v_block.blocked_memory_bytes,
                           committed_vcpus = room.committed_vcpus
                               + v_block.wanted_vcpus - v_block.blocked_vcpus
                     WHERE room.host_id = v_host;
                    CONTINUE;
                END IF;
                v_blocked := v_blocked || v_host;
                v_blocked_memory_bytes := v_blocked_memory_bytes
                    || v_block.wanted_memory_bytes - v_block.blocked_memory_bytes;
                v_blocked_vcpus := v_blocked_vcpus
                    || v_block.wanted_vcpus - v_block.blocked_vcpus;
            END LOOP;
        END LOOP;
    END IF;

    RETURN QUERY
    SELECT room.host_id, room.memory_bytes, room.vcpus, slots.memory_bytes, slots.vcpus,
           flights.memory_bytes, flights.vcpus, NULL::bigint
      FROM unnest(v_rooms, v_before_memory_bytes, v_before_vcpus)
           AS room (host_id, memory_bytes, vcpus)
     CROSS JOIN LATERAL (
           SELECT coalesce(sum(one.memory_bytes), 0)::bigint AS memory_bytes,
                  coalesce(sum(one.vcpus), 0)::bigint AS vcpus
             FROM unnest(v_blocked, v_blocked_memory_bytes, v_blocked_vcpus)
                  AS one (host_id, memory_bytes, vcpus)
            WHERE one.host_id = room.host_id) AS slots
     CROSS JOIN LATERAL (
           SELECT coalesce(sum(one.memory_bytes), 0)::bigint AS memory_bytes,
                  coalesce(sum(one.vcpus), 0)::bigint AS vcpus
             FROM unnest(v_ended, v_ended_memory_bytes, v_ended_vcpus)
                  AS one (host_id, memory_bytes, vcpus)
            WHERE one.host_id = room.host_id) AS flights;
    IF v_own IS NULL THEN
        RETURN;
    END IF;
    -- A VM that comes while it is on another host, or its own host is down, is evacuated.
    RETURN QUERY
    SELECT DISTINCT NULL::bigint, NULL::bigint, NULL::bigint, NULL::bigint, NULL::bigint,
           NULL::bigint, NULL::bigint, spare.id
      FROM (SELECT vm.vm_uuid, vm.reservation_id FROM capacity_reservationallocation AS vm
             WHERE vm.vm_uuid = ANY(p_consumers) OFFSET 0) AS own  -- not by the reservations
      JOIN capacity_reservation AS spare ON spare.id = own.reservation_id
       AND spare.kind = 'failover' AND spare.is_ready
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
                   AND home.state = 'down'));
END
$$;
