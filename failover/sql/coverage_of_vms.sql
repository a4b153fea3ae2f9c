WITH need AS (
    SELECT * FROM unnest(%(flavors)s::text[], %(counts)s::int[]) AS need(flavor_name, required)
), cover AS (
    SELECT member.vm_uuid, count(*) AS slots
      FROM capacity_reservationallocation AS member
      JOIN capacity_reservation AS held
        ON held.id = member.reservation_id AND held.kind = 'failover' AND held.is_ready
      LEFT JOIN failover_failoverreservation AS known ON known.reservation_id = held.id
     WHERE coalesce(known.state, 'active') = 'active'
     GROUP BY member.vm_uuid
)
SELECT host.zone, vm.flavor_name, need.required, count(*),
       count(*) FILTER (WHERE cover.slots >= need.required),
       count(*) FILTER (WHERE cover.slots < need.required),
       sum(vm.memory_bytes)::bigint
  FROM hosts_instance AS vm
  JOIN hosts_host AS host ON host.id = vm.host_id
  JOIN need ON need.flavor_name = vm.flavor_name
  LEFT JOIN cover ON cover.vm_uuid = vm.openstack_id
 WHERE vm.status <> ALL(%(not_owed)s) AND host.zone <> ''
   AND (%(cover_non_ha)s OR host.high_availability
        AND host.conditions->>'HaEnabled' IS DISTINCT FROM 'False')
 GROUP BY 1, 2, 3 ORDER BY 1, 2
