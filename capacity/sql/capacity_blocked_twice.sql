-- What slots and VMs in flight into them block together on a host: a VM may be placed into the slots
-- of its project and group, an evacuated one into its failover slot, and until it lands both rows
-- block the same room. What is promised on the host is the sum of all blocks less this
-- (spec commitments, 10.1: each blocks in full; scheduling, 16.3). Rows are found by their host (OFFSET 0
-- keeps it that way): indexes of kinds and of projects find those of the whole region.
CREATE OR REPLACE FUNCTION capacity_blocked_twice(
    p_host bigint, OUT memory_bytes bigint, OUT vcpus bigint
) LANGUAGE plpgsql STABLE
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET jit = off AS $$
DECLARE
    v_flight record;
    v_spare bigint[];
    v_spare_memory bigint[];
    v_spare_vcpus bigint[];
    v_memory bigint;
    v_vcpus bigint;
    v_projects text[] := '{}';
    v_groups text[] := '{}';
    v_flying_memory bigint[] := '{}';
    v_flying_vcpus bigint[] := '{}';
BEGIN
    memory_bytes := 0;
    vcpus := 0;
    FOR v_flight IN
        SELECT held.project_id, held.flavor_group_name, held.vm_uuid, held.intent,
               held.blocked_memory_bytes AS memory_bytes, held.blocked_vcpus AS vcpus
          FROM (SELECT * FROM capacity_reservation AS held
                 WHERE held.target_host_id = p_host OFFSET 0) AS held
         WHERE held.kind = 'in_flight' ORDER BY held.id
    LOOP
        IF v_flight.intent = 'evacuate' THEN
            IF v_spare IS NULL THEN
                SELECT array_agg(held.id ORDER BY held.id),
                       array_agg(held.blocked_memory_bytes ORDER BY held.id),
                       array_agg(held.blocked_vcpus ORDER BY held.id)
                  INTO v_spare, v_spare_memory, v_spare_vcpus
                  FROM (SELECT * FROM capacity_reservation AS held
                         WHERE held.target_host_id = p_host OR held.confirmed_host_id = p_host
                        OFFSET 0) AS held
                 WHERE held.kind = 'failover';
            END IF;
            FOR place IN 1 .. coalesce(cardinality(v_spare), 0) LOOP
                CONTINUE WHEN NOT EXISTS (
                    SELECT FROM capacity_reservationallocation AS vm
                     WHERE vm.reservation_id = v_spare[place] AND vm.vm_uuid = v_flight.vm_uuid);
                v_memory := least(v_flight.memory_bytes, v_spare_memory[place]);
                v_vcpus := least(v_flight.vcpus, v_spare_vcpus[place]);
                v_spare_memory[place] := v_spare_memory[place] - v_memory;
                v_spare_vcpus[place] := v_spare_vcpus[place] - v_vcpus;
                v_flight.memory_bytes := v_flight.memory_bytes - v_memory;
                v_flight.vcpus := v_flight.vcpus - v_vcpus;
                memory_bytes := memory_bytes + v_memory;
                vcpus := vcpus + v_vcpus;
            END LOOP;
        END IF;
        v_projects := v_projects || v_flight.project_id::text;
        v_groups := v_groups || v_flight.flavor_group_name::text;
        v_flying_memory := v_flying_memory || v_flight.memory_bytes;
        v_flying_vcpus := v_flying_vcpus || v_flight.vcpus;
    END LOOP;
    IF cardinality(v_projects) = 0 THEN
        RETURN;
    END IF;
    SELECT capacity_blocked_twice.memory_bytes
               + coalesce(sum(least(slots.memory_bytes, flying.memory_bytes)), 0),
           capacity_blocked_twice.vcpus + coalesce(sum(least(slots.vcpus, flying.vcpus)), 0)
      INTO memory_bytes, vcpus
      FROM (SELECT one.project_id, one.group_name, sum(one.memory_bytes)::bigint AS memory_bytes,
                   sum(one.vcpus)::bigint AS vcpus
              FROM unnest(v_projects, v_groups, v_flying_memory, v_flying_vcpus)
                   AS one (project_id, group_name, memory_bytes, vcpus)
             GROUP BY one.project_id, one.group_name) AS flying
     CROSS JOIN LATERAL (
           SELECT coalesce(sum(held.blocked_memory_bytes), 0)::bigint AS memory_bytes,
                  coalesce(sum(held.blocked_vcpus), 0)::bigint AS vcpus
             FROM (SELECT * FROM capacity_reservation AS held
                    WHERE held.target_host_id = p_host OR held.confirmed_host_id = p_host
                   OFFSET 0) AS held
            WHERE held.kind = 'committed' AND held.project_id = flying.project_id
              AND held.flavor_group_name = flying.group_name) AS slots;
END
$$;
