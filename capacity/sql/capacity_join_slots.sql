-- Puts a VM into some slots, those of its project on a host, the best first, each by a part (the order of
-- commitments.domain.classify.pick_slots), after it left those that it was in. Where vCPUs are left
-- over, slots that have some follow: the scheduler counts on all that they give. Returns the slots
-- that it left or joined. How statements are planned is its caller's business.
CREATE OR REPLACE FUNCTION capacity_join_slots(
    p_vm text, p_host bigint, p_project text, p_memory_bytes bigint, p_vcpus bigint,
    p_left bigint[], p_groups text[], p_slots bigint[]
) RETURNS bigint[] LANGUAGE plpgsql AS $$
DECLARE
    v_slot record;
    v_joined bigint[] := '{}';
    v_memory bigint := p_memory_bytes;
    v_vcpus bigint := p_vcpus;
BEGIN
    IF cardinality(p_left) > 0 THEN
        DELETE FROM capacity_reservationallocation AS vm
         WHERE vm.vm_uuid = p_vm AND vm.reservation_id = ANY(p_left);
    END IF;
    FOR turn IN 1 .. cardinality(p_slots)
    LOOP
        EXIT WHEN v_memory <= 0 AND v_vcpus <= 0;
        SELECT slot.id, greatest(slot.memory_bytes - taken.memory_bytes, 0) AS memory_bytes,
               greatest(slot.vcpus - taken.vcpus, 0) AS vcpus
          INTO v_slot
          FROM (SELECT * FROM capacity_reservation AS slot
                 WHERE slot.id = ANY(p_slots) OFFSET 0) AS slot  -- not by kind or project
         CROSS JOIN LATERAL (
               SELECT coalesce(sum(vm.memory_bytes), 0)::bigint AS memory_bytes,
                      coalesce(sum(vm.vcpus), 0)::bigint AS vcpus
                 FROM capacity_reservationallocation AS vm
                WHERE vm.reservation_id = slot.id) AS taken
         WHERE slot.target_host_id = p_host AND slot.confirmed_host_id = slot.target_host_id
           AND slot.kind = 'committed' AND slot.is_ready AND slot.project_id = p_project
           AND slot.flavor_group_name = ANY(p_groups) AND slot.flavor_group_name <> ''
           AND slot.id <> ALL(v_joined)
           AND (v_memory > 0 AND slot.memory_bytes > taken.memory_bytes
                OR v_vcpus > 0 AND slot.vcpus > taken.vcpus)
         ORDER BY least(slot.memory_bytes - taken.memory_bytes, v_memory) DESC,
                  least(slot.vcpus - taken.vcpus, v_vcpus) DESC,
                  slot.memory_bytes - taken.memory_bytes, slot.uuid
         LIMIT 1;
        EXIT WHEN NOT FOUND;
        INSERT INTO capacity_reservationallocation
            (reservation_id, vm_uuid, state, memory_bytes, vcpus, since, confirmed_host_id,
             confirmed_at)
        VALUES (v_slot.id, p_vm, 'confirmed', least(v_slot.memory_bytes, v_memory),
                least(v_slot.vcpus, v_vcpus), statement_timestamp(), p_host,
                statement_timestamp());
        v_memory := v_memory - least(v_slot.memory_bytes, v_memory);
        v_vcpus := v_vcpus - least(v_slot.vcpus, v_vcpus);
        v_joined := v_joined || v_slot.id;
    END LOOP;
    -- What none has room for is in the last.
    IF cardinality(v_joined) > 0 AND (v_memory > 0 OR v_vcpus > 0) THEN
        UPDATE capacity_reservationallocation AS vm
           SET memory_bytes = vm.memory_bytes + v_memory, vcpus = vm.vcpus + v_vcpus
         WHERE vm.vm_uuid = p_vm AND vm.reservation_id = v_joined[cardinality(v_joined)];
    END IF;
    RETURN p_left || v_joined;
END
$$;
