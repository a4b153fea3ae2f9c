-- The VMs in a reservation, and which of them its block counts (spec commitments, 10.1): while a slot
-- moves, its VMs may be on either host, and none of them counts as seen; an expected VM that an
-- in-flight row holds on the hosts of the slot is blocked by that row. The planner puts this text in
-- the place of a call.
CREATE OR REPLACE FUNCTION capacity_vms_in_slot(
    p_slot bigint, p_target_host bigint, p_confirmed_host bigint
) RETURNS TABLE (
    vm_uuid varchar, state varchar, memory_bytes bigint, vcpus bigint, is_seen boolean, is_due boolean
) LANGUAGE sql STABLE AS $$
SELECT vm.vm_uuid, vm.state, vm.memory_bytes, vm.vcpus,
       vm.state = 'confirmed' AND p_confirmed_host = p_target_host,
       vm.state = 'expected' AND NOT (
           EXISTS (SELECT FROM capacity_reservation AS flight
                    WHERE flight.kind = 'in_flight' AND flight.vm_uuid = vm.vm_uuid
                      AND flight.target_host_id = p_target_host)
           AND (p_confirmed_host IS NULL OR p_confirmed_host = p_target_host
                OR EXISTS (SELECT FROM capacity_reservation AS flight
                            WHERE flight.kind = 'in_flight' AND flight.vm_uuid = vm.vm_uuid
                              AND flight.target_host_id = p_confirmed_host)))
  FROM capacity_reservationallocation AS vm WHERE vm.reservation_id = p_slot
$$;
