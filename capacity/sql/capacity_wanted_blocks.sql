-- What each reservation has to block, from its size and its VMs (spec commitments, 10.1), beside what
-- it blocks. The planner puts this text in the place of a call, and chooses the rows first.
CREATE OR REPLACE FUNCTION capacity_wanted_blocks()
RETURNS TABLE (
    id bigint, kind varchar, target_host_id bigint, confirmed_host_id bigint,
    blocked_memory_bytes bigint, blocked_vcpus bigint, memory_bytes bigint, vcpus bigint
) LANGUAGE sql STABLE AS $$
SELECT held.id, held.kind, held.target_host_id, held.confirmed_host_id,
       held.blocked_memory_bytes, held.blocked_vcpus,
       CASE WHEN held.target_host_id IS NULL THEN 0
            WHEN held.kind <> 'committed' THEN held.memory_bytes
            ELSE greatest(held.memory_bytes - vms.seen_memory_bytes, vms.due_memory_bytes)
        END,
       CASE WHEN held.target_host_id IS NULL THEN 0
            WHEN held.kind <> 'committed' THEN held.vcpus
            ELSE greatest(held.vcpus - vms.seen_vcpus, vms.due_vcpus)
        END
  FROM capacity_reservation AS held
 CROSS JOIN LATERAL (
       SELECT coalesce(sum(vm.memory_bytes) FILTER (WHERE vm.is_seen), 0)::bigint
                  AS seen_memory_bytes,
              coalesce(sum(vm.vcpus) FILTER (WHERE vm.is_seen), 0)::bigint AS seen_vcpus,
              coalesce(sum(vm.memory_bytes) FILTER (WHERE vm.is_due), 0)::bigint
                  AS due_memory_bytes,
              coalesce(sum(vm.vcpus) FILTER (WHERE vm.is_due), 0)::bigint AS due_vcpus
         FROM (SELECT vm.memory_bytes, vm.vcpus, vm.is_seen, vm.is_due
                 FROM capacity_vms_in_slot(
                          held.id, held.target_host_id, held.confirmed_host_id) AS vm
               OFFSET 0) AS vm
       ) AS vms
$$;
