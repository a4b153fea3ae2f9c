-- What VMs take on hosts, as the host rooms count it (placement.selectors.allocated). Rows are found one
-- by one by their keys (OFFSET 0 keeps it that way), whatever the server knows of tables that may have
-- been filled a moment ago.
CREATE OR REPLACE FUNCTION placement_allocated(p_hosts bigint[])
RETURNS TABLE (host_id bigint, memory_bytes bigint, vcpus bigint) LANGUAGE sql STABLE AS $$
WITH rooted AS MATERIALIZED (
    SELECT one.host_id, root.id AS root_id
      FROM unnest(p_hosts) AS one (host_id)
      JOIN LATERAL (
           SELECT hosts_provider_uuid(host.provider_uuid, host.openstack_id) AS uuid
             FROM hosts_host AS host WHERE host.id = one.host_id OFFSET 0) AS host ON true
      LEFT JOIN LATERAL (
           SELECT root.id FROM placement_provider AS root
            WHERE root.uuid = host.uuid AND root.origin = 'host' OFFSET 0) AS root ON true)
SELECT held.host_id, sum(held.memory_bytes)::bigint, sum(held.vcpus)::bigint
  FROM (
        SELECT rooted.host_id, claimed.memory_bytes, claimed.vcpus
          FROM rooted CROSS JOIN LATERAL placement_claimed_of(rooted.root_id) AS claimed
         WHERE rooted.root_id IS NOT NULL
         UNION ALL
        SELECT rooted.host_id, vm.memory_bytes, vm.vcpus
          FROM rooted
          JOIN LATERAL (
               SELECT slot.id, slot.kind, slot.target_host_id, slot.confirmed_host_id
                 FROM capacity_reservation AS slot
                WHERE slot.target_host_id = rooted.host_id OFFSET 0) AS slot
            ON slot.kind = 'committed' AND slot.confirmed_host_id = slot.target_host_id
          JOIN LATERAL (
               SELECT vm.vm_uuid, vm.memory_bytes, vm.vcpus
                 FROM capacity_reservationallocation AS vm
                WHERE vm.reservation_id = slot.id AND vm.state = 'confirmed' OFFSET 0) AS vm
            ON true
         WHERE rooted.root_id IS NOT NULL
           AND NOT EXISTS (
                SELECT FROM placement_consumer AS consumer
                  JOIN LATERAL (
                       SELECT given.provider_id FROM placement_allocation AS given
                        WHERE given.consumer_id = consumer.id OFFSET 0) AS given ON true
                  JOIN LATERAL (
                       SELECT FROM placement_provider AS part
                        WHERE part.id = given.provider_id AND part.root_id = rooted.root_id
                       OFFSET 0) AS part ON true
                 WHERE consumer.uuid = hosts_provider_uuid('', vm.vm_uuid) OFFSET 0)
         UNION ALL
        SELECT rooted.host_id, vm.memory_bytes, vm.vcpus
          FROM rooted
          JOIN LATERAL (
               SELECT vm.memory_bytes, vm.vcpus FROM hosts_instance AS vm
                WHERE vm.host_id = rooted.host_id OFFSET 0) AS vm ON true
         WHERE rooted.root_id IS NULL
       ) AS held
 GROUP BY held.host_id
$$;
