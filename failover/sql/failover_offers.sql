CREATE OR REPLACE FUNCTION failover_offers(p_keys bigint[]) RETURNS TABLE (
    id bigint, name text, memory_bytes bigint, vcpus bigint, users bigint
) LANGUAGE plpgsql STABLE
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_indexscan = off
SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $$
BEGIN
    RETURN QUERY
    SELECT held.id, known.name::text, held.memory_bytes, held.vcpus,
           (SELECT count(*) FROM capacity_reservationallocation AS vm
             WHERE vm.reservation_id = held.id)
      FROM capacity_reservation AS held
     CROSS JOIN LATERAL (SELECT one.name, one.state FROM failover_failoverreservation AS one
                          WHERE one.reservation_id = held.id OFFSET 0) AS known
     WHERE held.id = ANY(p_keys) AND held.is_ready AND known.state = 'active';
END
$$;
