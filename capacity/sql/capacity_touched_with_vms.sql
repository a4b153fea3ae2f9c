-- Reservations with their VMs, so that a call follows others in two questions. Whatever an in-flight
-- row says of a VM decides how the slots that expect it count it.
CREATE OR REPLACE FUNCTION capacity_touched_with_vms(
    p_ids bigint[], p_host_ids bigint[], p_vm_uuids text[]
) RETURNS TABLE (
    id bigint, kind text, is_ready boolean, project_id text, flavor_group_name text, zone text,
    target_host_id bigint, confirmed_host_id bigint, memory_bytes bigint, vcpus bigint,
    blocked_memory_bytes bigint, blocked_vcpus bigint, vm_uuid text, placement_id text, vms text
) LANGUAGE plpgsql STABLE
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_indexscan = off
SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $$
DECLARE
    touched bigint[];
BEGIN
    touched := ARRAY(
        SELECT unnest(p_ids)
         UNION
        SELECT held.id FROM capacity_reservation AS held
         WHERE held.target_host_id = ANY(p_host_ids)
         UNION
        SELECT held.id FROM capacity_reservation AS held
         WHERE held.confirmed_host_id = ANY(p_host_ids)
         UNION
        SELECT listed.reservation_id FROM capacity_reservationallocation AS listed
         WHERE listed.vm_uuid = ANY(p_vm_uuids || ARRAY(
               SELECT moving.vm_uuid
                 FROM (SELECT held.kind, held.vm_uuid FROM capacity_reservation AS held
                        WHERE held.id = ANY(p_ids) OFFSET 0) AS moving
                WHERE moving.kind = 'in_flight')::text[])
    );
    RETURN QUERY
    SELECT held.id, held.kind::text, held.is_ready IS TRUE, held.project_id::text,
           held.flavor_group_name::text, held.zone::text, held.target_host_id,
           held.confirmed_host_id, held.memory_bytes, held.vcpus, held.blocked_memory_bytes,
           held.blocked_vcpus, held.vm_uuid::text, held.placement_id::text,
           (SELECT json_agg(json_build_array(vm.id, vm.reservation_id, vm.vm_uuid, vm.memory_bytes,
                                             vm.vcpus, vm.state = 'expected'))::text
              FROM capacity_reservationallocation AS vm WHERE vm.reservation_id = held.id)
      FROM capacity_reservation AS held
     WHERE held.id = ANY(touched)
     ORDER BY held.id;
END
$$;
