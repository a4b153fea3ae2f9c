-- Settles a VM that held nothing before and comes to one host, as most claims do (ADR 0029): what
-- capacity_settle_claims does for any consumers of a write, in fewer statements, as all is known of such
-- a claim but the host's room and slots. Settles nothing where the VM is in flight or in a
-- reservation already, or where the room takes a longer look: its caller does all of it then.
--
-- p_memory_bytes, p_vcpus and p_classes: what the VM takes of the host from now on. Returns what VMs took
-- of the host before, what they and holds did, and by how much its slots block more; the caller writes
-- the room.
-- Locks the room, then slots; reads tables as capacity_settle_claims does. All else of how statements
-- are planned is its caller's business.
CREATE OR REPLACE FUNCTION capacity_settle_new(
    p_vm text, p_project text, p_host bigint, p_memory_bytes bigint, p_vcpus bigint,
    p_classes jsonb, OUT is_settled boolean, OUT allocated_memory_bytes bigint,
    OUT allocated_vcpus bigint, OUT memory_bytes bigint, OUT vcpus bigint,
    OUT committed_memory_bytes bigint, OUT committed_vcpus bigint
) LANGUAGE plpgsql
SET enable_indexscan = off SET enable_indexonlyscan = off AS $$
#variable_conflict use_column
DECLARE
    v_room record;
    v_best record;
    v_slots bigint[];
    v_offered text[];
    v_groups text[];
    v_block record;
BEGIN
    is_settled := false;
    SELECT room.in_flight_memory_bytes, room.allocated_memory_bytes, room.allocated_vcpus,
           room.allocated_memory_bytes + room.committed_memory_bytes + room.failover_memory_bytes
               + room.in_flight_memory_bytes AS memory_bytes,
           room.allocated_vcpus + room.committed_vcpus + room.failover_vcpus
               + room.in_flight_vcpus AS vcpus,
           room.effective_memory_bytes, room.effective_vcpus,
           room.committed_memory_bytes > 0 OR room.committed_vcpus > 0 AS is_held
      INTO v_room
      FROM capacity_hostcapacity AS room WHERE room.host_id = p_host FOR NO KEY UPDATE;
    -- The room was waited for: only now nobody puts the VM in flight here, or into a slot.
    IF NOT FOUND
       OR (v_room.in_flight_memory_bytes > 0
           AND (v_room.memory_bytes > v_room.effective_memory_bytes
                OR v_room.vcpus > v_room.effective_vcpus))
       OR EXISTS (SELECT FROM capacity_reservation AS flight
                   WHERE flight.kind = 'in_flight' AND flight.vm_uuid = p_vm)
       OR EXISTS (SELECT FROM capacity_reservationallocation AS vm WHERE vm.vm_uuid = p_vm) THEN
        RETURN;
    END IF;

    is_settled := true;
    allocated_memory_bytes := v_room.allocated_memory_bytes;
    allocated_vcpus := v_room.allocated_vcpus;
    memory_bytes := v_room.memory_bytes;
    vcpus := v_room.vcpus;
    committed_memory_bytes := 0;
    committed_vcpus := 0;

    -- A slot that blocks nothing has no room for a VM either.
    IF v_room.is_held AND p_memory_bytes > 0 THEN
        -- Added nothings keep the indexes of kinds and projects from being asked.
        SELECT array_agg(held.id),
               array_agg(held.group_name) FILTER (WHERE held.is_ready AND held.group_name <> '')
          INTO v_slots, v_offered
          FROM (SELECT held.id, held.is_ready, held.flavor_group_name::text AS group_name
                  FROM capacity_reservation AS held
                 WHERE held.target_host_id = p_host AND held.kind || '' = 'committed'
                   AND held.project_id || '' = p_project
                   AND (held.blocked_memory_bytes > 0 OR held.blocked_vcpus > 0)
                 ORDER BY held.id FOR NO KEY UPDATE) AS held;
        IF cardinality(v_offered) > 0 THEN
            v_groups := capacity_groups_of_claim(p_vm, p_memory_bytes, p_vcpus, p_classes, v_offered);
        END IF;
        IF cardinality(v_groups) > 0 THEN
            -- Where the best slot (capacity_join_slots) has room for all of it and no VM is awaited there,
            -- it blocks what its VMs leave of it (capacity_wanted_blocks): all of that at once.
            SELECT slot.id, slot.memory_bytes - vms.memory_bytes AS memory_bytes,
                   slot.vcpus - vms.vcpus AS vcpus, vms.has_expected, slot.blocked_memory_bytes,
                   slot.blocked_vcpus
              INTO v_best
              FROM capacity_reservation AS slot
             CROSS JOIN LATERAL (
                   SELECT coalesce(sum(vm.memory_bytes), 0)::bigint AS memory_bytes,
                          coalesce(sum(vm.vcpus), 0)::bigint AS vcpus,
                          coalesce(bool_or(vm.state = 'expected'), false) AS has_expected
                     FROM capacity_reservationallocation AS vm
                    WHERE vm.reservation_id = slot.id) AS vms
             WHERE slot.id = ANY(v_slots) AND slot.target_host_id + 0 = p_host
               AND slot.confirmed_host_id + 0 = p_host AND slot.is_ready
               AND slot.flavor_group_name = ANY(v_groups) AND slot.flavor_group_name <> ''
               AND (slot.memory_bytes > vms.memory_bytes
                    OR p_vcpus > 0 AND slot.vcpus > vms.vcpus)
             ORDER BY least(slot.memory_bytes - vms.memory_bytes, p_memory_bytes) DESC,
                      least(slot.vcpus - vms.vcpus, p_vcpus) DESC,
                      slot.memory_bytes - vms.memory_bytes, slot.uuid
             LIMIT 1;
            IF v_best.memory_bytes >= p_memory_bytes AND v_best.vcpus >= p_vcpus
               AND NOT v_best.has_expected THEN
                INSERT INTO capacity_reservationallocation
                    (reservation_id, vm_uuid, state, memory_bytes, vcpus, since,
                     confirmed_host_id, confirmed_at)
                VALUES (v_best.id, p_vm, 'confirmed', p_memory_bytes, p_vcpus,
                        statement_timestamp(), p_host, statement_timestamp());
                UPDATE capacity_reservation AS held
                   SET blocked_memory_bytes = v_best.memory_bytes - p_memory_bytes,
                       blocked_vcpus = v_best.vcpus - p_vcpus
                 WHERE held.id = v_best.id;
                committed_memory_bytes :=
                    v_best.memory_bytes - p_memory_bytes - v_best.blocked_memory_bytes;
                committed_vcpus := v_best.vcpus - p_vcpus - v_best.blocked_vcpus;
                RETURN;
            END IF;
            FOR v_block IN
                SELECT * FROM capacity_block_slots(capacity_join_slots(
                    p_vm, p_host, p_project, p_memory_bytes, p_vcpus, '{}', v_groups, v_slots))
            LOOP
                committed_memory_bytes := committed_memory_bytes + v_block.memory_bytes;
                committed_vcpus := committed_vcpus + v_block.vcpus;
            END LOOP;
        END IF;
    END IF;
END
$$;
