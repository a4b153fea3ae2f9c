-- The commitments of a project that each call of the scheduler asks for, with a steady plan.
CREATE OR REPLACE FUNCTION commitments_active(
    p_project text, p_group text, p_zone text, p_resource_type text, p_states text[]
) RETURNS TABLE (zone text, state text, amount bigint, used_memory_bytes bigint)
LANGUAGE plpgsql STABLE
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET jit = off AS $$
BEGIN
    RETURN QUERY
    SELECT one.zone::text, one.state::text, coalesce(one.accepted_amount, one.requested_amount),
           one.used_memory_bytes
      FROM commitments_commitment AS one
     WHERE one.project_id = p_project AND one.flavor_group_name = p_group
       AND one.resource_type = p_resource_type AND one.state = ANY(p_states)
       AND (p_zone = '' OR one.zone = p_zone)
       AND (one.start_time IS NULL OR one.start_time <= clock_timestamp())
       AND (one.end_time IS NULL OR one.end_time > clock_timestamp())
     ORDER BY one.id;
END
$$;
