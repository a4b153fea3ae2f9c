-- Writes what reservations block now (capacity.ledger.rooms.WANTED_BLOCKS, in the same words). Returns
-- where each one that changed is, and by how much it blocks more. How statements are planned is its
-- caller's business.
CREATE OR REPLACE FUNCTION capacity_block_slots(p_slots bigint[])
RETURNS TABLE (
    target_host_id bigint, confirmed_host_id bigint, memory_bytes bigint, vcpus bigint
) LANGUAGE plpgsql AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
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
 WHERE held.id = ANY(p_slots))
UPDATE capacity_reservation AS held
   SET blocked_memory_bytes = wanted.wanted_memory_bytes, blocked_vcpus = wanted.wanted_vcpus
  FROM wanted
 WHERE held.id = wanted.id
   AND (wanted.blocked_memory_bytes, wanted.blocked_vcpus)
       IS DISTINCT FROM (wanted.wanted_memory_bytes, wanted.wanted_vcpus)
RETURNING wanted.target_host_id, wanted.confirmed_host_id,
          wanted.wanted_memory_bytes - wanted.blocked_memory_bytes,
          wanted.wanted_vcpus - wanted.blocked_vcpus;
END
$$;
