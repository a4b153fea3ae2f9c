-- Settles what consumers of Placement hold on hosts (ADR 0029): ends their in-flight rows, lets
-- them leave, keep and join slots of their project, and counts what slots block. One call for all
-- consumers of one write, in its transaction.
--
-- p_consumers: who was written. p_hosts: hosts whose trees of providers changed. p_pieces: what the
-- consumers hold now, one object for each of their hosts: vm, project, host, memory_bytes, vcpus
-- and classes (amount by resource class).
--
-- Returns what was taken of each locked host before (VMs and holds, what is blocked twice once), and
-- the failover reservations that evacuated VMs use now, as rows without a host. What VMs take is counted by the caller.
-- Locks rooms by primary key, then slots.
CREATE OR REPLACE FUNCTION capacity_settle_claims(
    p_consumers text[], p_hosts bigint[], p_pieces jsonb
) RETURNS TABLE (host_id bigint, memory_bytes bigint, vcpus bigint, failover_id bigint)
LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET jit = off AS $$
#variable_conflict use_column
DECLARE
    v_hosts bigint[];
    v_flown jsonb;
    v_slots bigint[];
    v_touched bigint[] := '{}';
    v_more bigint[];
    v_piece record;
    v_inside record;
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
    RETURN QUERY
    SELECT room.host_id,
           taken.memory_bytes - coalesce(twice.memory_bytes, 0),
           taken.vcpus - coalesce(twice.vcpus, 0), NULL::bigint
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
    WITH gone AS (
        DELETE FROM capacity_reservation AS flight
         WHERE flight.kind = 'in_flight' AND flight.vm_uuid = ANY(p_consumers)
           AND flight.target_host_id = ANY(v_hosts)
        RETURNING flight.vm_uuid, flight.flavor_group_name, flight.intent, flight.target_host_id,
                  flight.blocked_memory_bytes, flight.blocked_vcpus),
    given AS (
        UPDATE capacity_hostcapacity AS room
           SET in_flight_memory_bytes = room.in_flight_memory_bytes - back.memory_bytes,
               in_flight_vcpus = room.in_flight_vcpus - back.vcpus
          FROM (SELECT gone.target_host_id, sum(gone.blocked_memory_bytes)::bigint AS memory_bytes,
                       sum(gone.blocked_vcpus)::bigint AS vcpus
                  FROM gone GROUP BY gone.target_host_id) AS back
         WHERE room.host_id = back.target_host_id)
    SELECT jsonb_object_agg(gone.vm_uuid, jsonb_build_array(gone.flavor_group_name, gone.intent))
      INTO v_flown FROM gone;

    SELECT array_agg(slot.id) INTO v_slots FROM (
        SELECT held.id FROM capacity_reservation AS held
         WHERE held.id = ANY(ARRAY(
                SELECT vm.reservation_id FROM capacity_reservationallocation AS vm
                 WHERE vm.vm_uuid = ANY(p_consumers)
                 UNION
                SELECT own.id
                  FROM jsonb_to_recordset(p_pieces) AS piece(project text, host bigint)
                  JOIN capacity_reservation AS own ON own.target_host_id = piece.host
                   AND own.kind = 'committed' AND own.project_id = piece.project))
           AND held.kind = 'committed'
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
                           AND slot.target_host_id = v_old.host)
                 ORDER BY piece.vm LIMIT 1;
                IF FOUND THEN
                    UPDATE capacity_reservationallocation AS vm SET vm_uuid = v_heir
                      FROM capacity_reservation AS slot
                     WHERE vm.vm_uuid = v_old.vm_uuid AND slot.id = vm.reservation_id
                       AND slot.kind = 'committed' AND slot.target_host_id = v_old.host;
                END IF;
            END LOOP;
        END IF;

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

        FOR v_piece IN
            SELECT * FROM jsonb_to_recordset(p_pieces) AS piece(
                   vm text, project text, host bigint, memory_bytes bigint, vcpus bigint,
                   classes jsonb)
             WHERE piece.memory_bytes > 0 ORDER BY piece.vm, piece.host
        LOOP
            SELECT coalesce(sum(vm.memory_bytes), 0)::bigint AS memory_bytes,
                   coalesce(sum(vm.vcpus), 0)::bigint AS vcpus, count(*) AS parts,
                   array_agg(vm.reservation_id) AS slots,
                   array_agg(slot.flavor_group_name::text) AS groups,
                   bool_or(vm.state = 'expected') AS is_expected,
                   bool_or(slot.confirmed_host_id IS DISTINCT FROM slot.target_host_id)
                       AS is_moving
              INTO v_inside
              FROM capacity_reservationallocation AS vm
              JOIN capacity_reservation AS slot ON slot.id = vm.reservation_id
             WHERE vm.vm_uuid = v_piece.vm AND slot.id = ANY(v_slots)
               AND v_piece.host IN (slot.target_host_id, slot.confirmed_host_id);
            CONTINUE WHEN v_inside.is_moving;
            IF v_inside.parts > 0
               AND (v_inside.memory_bytes, v_inside.vcpus) = (v_piece.memory_bytes, v_piece.vcpus)
            THEN
                IF v_inside.is_expected THEN
                    UPDATE capacity_reservationallocation AS vm
                       SET state = 'confirmed', confirmed_host_id = v_piece.host,
                           confirmed_at = statement_timestamp(), missing_since = NULL
                     WHERE vm.vm_uuid = v_piece.vm AND vm.reservation_id = ANY(v_inside.slots);
                    v_touched := v_touched || v_inside.slots;
                END IF;
                CONTINUE;
            END IF;
            CONTINUE WHEN v_inside.parts = 0 AND NOT EXISTS (
                SELECT FROM capacity_reservation AS slot
                 WHERE slot.id = ANY(v_slots) AND slot.is_ready
                   AND slot.project_id = v_piece.project AND slot.target_host_id = v_piece.host);
            v_touched := v_touched || capacity_join_slots(
                v_piece.vm, v_piece.host, v_piece.project, v_piece.memory_bytes, v_piece.vcpus,
                coalesce(v_inside.slots, '{}'),
                CASE WHEN v_flown ? v_piece.vm THEN ARRAY[v_flown #>> ARRAY[v_piece.vm, '0']]
                     ELSE capacity_groups_of_claim(v_piece.vm, v_piece.memory_bytes,
                                                   v_piece.vcpus, v_piece.classes) END
                || CASE WHEN v_piece.memory_bytes <= v_inside.memory_bytes
                             AND v_piece.vcpus <= v_inside.vcpus
                        THEN v_inside.groups ELSE '{}' END);
        END LOOP;

        -- What the slots block now (capacity.ledger.rooms.WANTED_BLOCKS, in the same words).
        SELECT v_touched || coalesce(array_agg(vm.reservation_id), '{}') INTO v_touched
          FROM capacity_reservationallocation AS vm
         WHERE vm.vm_uuid = ANY(p_consumers) AND vm.state = 'expected'
           AND vm.reservation_id = ANY(v_slots);
        WITH wanted AS (SELECT held.id, held.kind, held.target_host_id, held.confirmed_host_id,
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
       SELECT coalesce(sum(vm.memory_bytes) FILTER (WHERE vm.state = 'confirmed' AND held.confirmed_host_id = held.target_host_id), 0)::bigint
                  AS seen_memory_bytes,
              coalesce(sum(vm.vcpus) FILTER (WHERE vm.state = 'confirmed' AND held.confirmed_host_id = held.target_host_id), 0)::bigint AS seen_vcpus,
              coalesce(sum(vm.memory_bytes) FILTER (WHERE 
vm.state = 'expected' AND NOT (
    EXISTS (SELECT FROM capacity_reservation AS flight
             WHERE flight.kind = 'in_flight' AND flight.vm_uuid = vm.vm_uuid
               AND flight.target_host_id = held.target_host_id)
    AND (held.confirmed_host_id IS NULL OR held.confirmed_host_id = held.target_host_id
         OR EXISTS (SELECT FROM capacity_reservation AS flight
                     WHERE flight.kind = 'in_flight' AND flight.vm_uuid = vm.vm_uuid
                       AND flight.target_host_id = held.confirmed_host_id)))
), 0)::bigint
                  AS due_memory_bytes,
              coalesce(sum(vm.vcpus) FILTER (WHERE 
vm.state = 'expected' AND NOT (
    EXISTS (SELECT FROM capacity_reservation AS flight
             WHERE flight.kind = 'in_flight' AND flight.vm_uuid = vm.vm_uuid
               AND flight.target_host_id = held.target_host_id)
    AND (held.confirmed_host_id IS NULL OR held.confirmed_host_id = held.target_host_id
         OR EXISTS (SELECT FROM capacity_reservation AS flight
                     WHERE flight.kind = 'in_flight' AND flight.vm_uuid = vm.vm_uuid
                       AND flight.target_host_id = held.confirmed_host_id)))
), 0)::bigint AS due_vcpus
         FROM capacity_reservationallocation AS vm WHERE vm.reservation_id = held.id
       ) AS vms
             WHERE held.id = ANY(v_touched)),
        changed AS (
            UPDATE capacity_reservation AS held
               SET blocked_memory_bytes = wanted.wanted_memory_bytes,
                   blocked_vcpus = wanted.wanted_vcpus
              FROM wanted
             WHERE held.id = wanted.id
               AND (wanted.blocked_memory_bytes, wanted.blocked_vcpus)
                   IS DISTINCT FROM (wanted.wanted_memory_bytes, wanted.wanted_vcpus)
            RETURNING wanted.target_host_id, wanted.confirmed_host_id,
                      wanted.wanted_memory_bytes - wanted.blocked_memory_bytes AS memory_bytes,
                      wanted.wanted_vcpus - wanted.blocked_vcpus AS vcpus)
        UPDATE capacity_hostcapacity AS room
           SET committed_memory_bytes = room.committed_memory_bytes + delta.memory_bytes,
               committed_vcpus = room.committed_vcpus + delta.vcpus
          FROM (SELECT place.host_id, sum(place.memory_bytes)::bigint AS memory_bytes,
                       sum(place.vcpus)::bigint AS vcpus
                  FROM (SELECT target_host_id AS host_id, memory_bytes, vcpus FROM changed
                         UNION ALL
                        SELECT confirmed_host_id, memory_bytes, vcpus FROM changed
                         WHERE confirmed_host_id IS DISTINCT FROM target_host_id) AS place
                 GROUP BY place.host_id) AS delta
         WHERE room.host_id = delta.host_id;
    END IF;

    -- A VM that comes while it is on another host, or its own host is down, is evacuated.
    RETURN QUERY
    SELECT DISTINCT NULL::bigint, NULL::bigint, NULL::bigint, spare.id
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
