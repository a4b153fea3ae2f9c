-- Reservations of some keys and their users, as lists of the columns that failover/selectors/zone.py
-- names; if asked for, also the reservations that these users share with others, which may not be
-- joined then: they tell what the rules forbid.
CREATE OR REPLACE FUNCTION failover_around_slots(p_keys bigint[], p_wide boolean)
RETURNS jsonb LANGUAGE plpgsql STABLE
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_indexscan = off
SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $$
DECLARE
    shown bigint[] := p_keys;
BEGIN
    IF p_wide THEN
        shown := p_keys || ARRAY(
            SELECT DISTINCT other.reservation_id
              FROM (SELECT DISTINCT vm_uuid FROM capacity_reservationallocation
                     WHERE reservation_id = ANY(p_keys)) AS one
             CROSS JOIN LATERAL (SELECT reservation_id, vm_host_id
                                   FROM capacity_reservationallocation
                                  WHERE vm_uuid = one.vm_uuid OFFSET 0) AS other
             WHERE other.vm_host_id IS NOT NULL);
    END IF;
    RETURN jsonb_build_object(
        'slots', coalesce((
            SELECT jsonb_agg(jsonb_build_array(
                       held.id, coalesce(known.name, held.uuid::text), held.target_host_id,
                       held.memory_bytes, held.vcpus,
                       held.is_ready IS TRUE AND held.id = ANY(p_keys),
                       coalesce(known.state, 'active')) ORDER BY held.id)
              FROM capacity_reservation AS held
              LEFT JOIN LATERAL (SELECT name, state FROM failover_failoverreservation
                                  WHERE reservation_id = held.id OFFSET 0) AS known ON true
             WHERE held.id = ANY(shown)), '[]'),
        'members', coalesce((
            SELECT jsonb_agg(jsonb_build_array(
                       vm.id, vm.reservation_id, vm.vm_uuid, vm.vm_host_id,
                       vm.validated_at IS NOT NULL, vm.memory_bytes, vm.vcpus) ORDER BY vm.id)
              FROM capacity_reservationallocation AS vm
             WHERE vm.reservation_id = ANY(shown)), '[]')
    );
END
$$;
