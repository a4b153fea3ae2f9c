-- A reservation that another is changing now is passed over. The kind is asked for in a way that no
-- index of it answers.
CREATE OR REPLACE FUNCTION failover_lock_slots(p_keys bigint[]) RETURNS TABLE (
    id bigint, memory_bytes bigint, vcpus bigint
) LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_indexscan = off
SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $$
BEGIN
    RETURN QUERY
    SELECT held.id, held.memory_bytes, held.vcpus
      FROM capacity_reservation AS held
      JOIN failover_failoverreservation AS known ON known.reservation_id = held.id
     WHERE held.id = ANY(p_keys) AND known.reservation_id = ANY(p_keys)
       AND coalesce(held.kind, '') = 'failover' AND held.is_ready AND known.state = 'active'
     ORDER BY held.id FOR NO KEY UPDATE OF held, known SKIP LOCKED;
END
$$;
