-- What is held of a provider; one row without a consumer when nothing is.
CREATE OR REPLACE FUNCTION placement_provider_allocations(p_provider uuid) RETURNS TABLE (
    generation integer, consumer text, consumer_generation integer, class text, amount bigint,
    created_at float8
) LANGUAGE plpgsql STABLE
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET jit = off AS $$
BEGIN
    RETURN QUERY
    SELECT p.generation, k.uuid::text, k.generation, c.name::text, a.used,
           extract(epoch FROM a.created_at)::float8
      FROM placement_provider p
      LEFT JOIN placement_allocation a ON a.provider_id = p.id
      LEFT JOIN placement_consumer k ON k.id = a.consumer_id
      LEFT JOIN placement_resource_class c ON c.id = a.resource_class_id
     WHERE p.uuid = p_provider AND p.origin <> 'upstream'
     ORDER BY a.consumer_id, a.resource_class_id;
END
$$;
