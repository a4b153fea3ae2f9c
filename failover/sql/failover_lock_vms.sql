-- A VM that another is changing now is passed over: waiting for it could end in a deadlock. How many
-- reservations a VM has is counted after it was locked.
CREATE OR REPLACE FUNCTION failover_lock_vms(p_uuids text[]) RETURNS TABLE (
    vm_uuid text, host_id bigint, slots bigint
) LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_indexscan = off
SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $$
DECLARE
    found_uuids text[];
    found_hosts bigint[];
BEGIN
    SELECT array_agg(one.openstack_id), array_agg(one.host_id) INTO found_uuids, found_hosts
      FROM (SELECT vm.openstack_id, vm.host_id FROM hosts_instance AS vm
             WHERE vm.openstack_id = ANY(p_uuids) ORDER BY vm.id FOR SHARE SKIP LOCKED) AS one;
    RETURN QUERY
    SELECT one.vm_uuid, one.host_id,
           (SELECT count(listed.vm_host_id) FROM capacity_reservationallocation AS listed
             WHERE listed.vm_uuid = one.vm_uuid)
      FROM unnest(found_uuids, found_hosts) AS one(vm_uuid, host_id);
END
$$;
