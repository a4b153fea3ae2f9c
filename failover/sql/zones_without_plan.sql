SELECT DISTINCT host.zone
  FROM hosts_host AS host
  JOIN hosts_instance AS vm ON vm.host_id = host.id
 WHERE host.is_lost AND host.zone <> ''
   AND EXISTS (SELECT FROM capacity_reservationallocation AS member
                WHERE member.vm_uuid = vm.openstack_id AND member.vm_host_id = host.id)
   AND NOT EXISTS (SELECT FROM failover_evacuationmove AS move
                     JOIN failover_evacuationplan AS plan ON plan.id = move.plan_id
                    WHERE plan.state = 'open' AND plan.zone = host.zone
                      AND host.name = ANY(plan.failed_hosts) AND move.vm_uuid = vm.openstack_id
                      AND move.from_host_id = host.id)
 UNION
SELECT plan.zone
  FROM failover_evacuationplan AS plan
  JOIN failover_evacuationmove AS move ON move.plan_id = plan.id
                                      AND move.state IN ('planned', 'started')
  JOIN hosts_host AS host ON host.id = move.target_host_id
 WHERE plan.state = 'open' AND host.is_lost
 ORDER BY 1
