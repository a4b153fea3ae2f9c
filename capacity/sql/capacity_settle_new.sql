-- Settles a VM that held nothing before and comes to one host, as most claims do (ADR 0029): what
-- capacity_settle_claims does for any consumers of a write, in fewer statements, as all is known of such
-- a claim but the host's room and slots. Settles nothing where the VM is in flight or in a
-- reservation already, or where the room takes a longer look: its caller does all of it then.
--
-- p_memory_bytes, p_vcpus and p_classes: what the VM takes of the host from now on. Returns what was
-- taken of the host before, and by how much its slots block more; the caller writes the room.
-- Locks the room, then slots; reads tables as capacity_settle_claims does. All else of how statements
-- are planned is its caller's business.
CREATE OR REPLACE FUNCTION capacity_settle_new(
    p_vm text, p_project text, p_host bigint, p_memory_bytes bigint, p_vcpus bigint,
    p_classes jsonb, OUT is_settled boolean, OUT memory_bytes bigint, OUT vcpus bigint,
    OUT committed_memory_bytes bigint, OUT committed_vcpus bigint
) LANGUAGE plpgsql
SET enable_indexscan = off SET enable_indexonlyscan = off AS $$
#variable_conflict use_column
DECLARE
    v_room record;
    v_slot record;
    v_slots bigint[] := '{}';
    v_offered text[] := '{}';
    v_groups text[];
    v_block record;
BEGIN
    is_settled := false;
    SELECT room.in_flight_memory_bytes,
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
    memory_bytes := v_room.memory_bytes;
    vcpus := v_room.vcpus;
    committed_memory_bytes := 0;
    committed_vcpus := 0;

    -- A slot that blocks nothing has no room for a VM either.
    IF v_room.is_held AND p_memory_bytes > 0 THEN
        FOR v_slot IN
            SELECT held.id, held.is_ready, held.flavor_group_name::text AS group_name
              FROM capacity_reservation AS held
             WHERE held.id = ANY (ARRAY(
                    SELECT slot.id
                      FROM (SELECT slot.id, slot.kind, slot.project_id, slot.blocked_memory_bytes,
                                   slot.blocked_vcpus
                              FROM capacity_reservation AS slot
                             WHERE slot.target_host_id = p_host OFFSET 0) AS slot
                     WHERE slot.kind = 'committed' AND slot.project_id = p_project
                       AND (slot.blocked_memory_bytes > 0 OR slot.blocked_vcpus > 0)))
             ORDER BY held.id FOR NO KEY UPDATE
        LOOP
            v_slots := v_slots || v_slot.id;
            IF v_slot.is_ready AND v_slot.group_name <> '' THEN
                v_offered := v_offered || v_slot.group_name;
            END IF;
        END LOOP;
        IF cardinality(v_offered) > 0 THEN
            v_groups := capacity_groups_of_claim(p_vm, p_memory_bytes, p_vcpus, p_classes, v_offered);
        END IF;
        IF cardinality(v_groups) > 0 THEN
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
