-- Accepted, or rejected and rolled back: then the slots must add up to what was accepted, placed.
-- Pending and never accepted: then nothing is held; it holds all from the moment it is accepted.
WITH broken AS (
    SELECT held.id
      FROM commitments_commitment AS held
      LEFT JOIN (
            SELECT commitment_id, sum(memory_bytes) AS memory_bytes,
                   bool_or(target_host_id IS NULL) AS has_unplaced,
                   bool_or(target_host_id IS NOT NULL) AS has_placed
              FROM capacity_reservation
             WHERE kind = 'committed' AND zone = %(zone)s
             GROUP BY commitment_id
           ) AS slots ON slots.commitment_id = held.id
     WHERE held.zone = %(zone)s AND held.resource_type = 'memory'
       AND held.state IN ('pending', 'guaranteed', 'confirmed')
       AND (held.end_time IS NULL OR held.end_time > %(now)s)
       AND (held.next_reconcile_at IS NULL OR held.next_reconcile_at > %(now)s)
       AND ((held.ready_reason IN ('Accepted', 'Rejected') AND held.accepted_amount IS NOT NULL
             AND (held.ready_reason = 'Accepted' OR held.next_reconcile_at IS NULL
                  OR held.next_reconcile_at = held.end_time
                  OR held.next_reconcile_at > %(latest)s)
             AND (coalesce(slots.memory_bytes, 0) <> held.accepted_amount OR slots.has_unplaced))
            OR (held.state = 'pending' AND held.accepted_amount IS NULL AND slots.has_placed))
     ORDER BY held.id FOR NO KEY UPDATE OF held SKIP LOCKED
)
UPDATE commitments_commitment AS held SET next_reconcile_at = %(now)s
  FROM broken WHERE held.id = broken.id
