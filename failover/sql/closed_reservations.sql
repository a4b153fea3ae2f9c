WITH near AS (
    SELECT id FROM capacity_reservation WHERE kind = 'failover' AND target_host_id = %(host)s
     UNION
    SELECT reservation_id FROM capacity_reservationallocation WHERE vm_host_id = %(host)s
)
SELECT id FROM near
 UNION
SELECT other.reservation_id
  FROM (SELECT DISTINCT vm.vm_uuid
          FROM near JOIN capacity_reservationallocation AS vm ON vm.reservation_id = near.id) AS one
  JOIN capacity_reservationallocation AS other
    ON other.vm_uuid = one.vm_uuid AND other.vm_host_id IS NOT NULL
