-- What a consumer holds. Plans of a function stay good while the tables grow; one that a connection
-- kept from when they were nearly empty read them from end to end.
CREATE OR REPLACE FUNCTION placement_consumer_allocations(p_consumer uuid) RETURNS TABLE (
    provider text, generation integer, class text, amount bigint, created_at float8,
    consumer_generation integer, project text, owner text, type text
) LANGUAGE plpgsql STABLE
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET jit = off AS $$
BEGIN
    RETURN QUERY
    SELECT p.uuid::text, p.generation, c.name::text, a.used,
           extract(epoch FROM a.created_at)::float8, k.generation, j.external_id::text,
           u.external_id::text, t.name::text
      FROM placement_consumer k
      JOIN placement_allocation a ON a.consumer_id = k.id
      JOIN placement_provider p ON p.id = a.provider_id
      JOIN placement_resource_class c ON c.id = a.resource_class_id
      JOIN placement_project j ON j.id = k.project_id
      JOIN placement_user u ON u.id = k.user_id
      LEFT JOIN placement_consumer_type t ON t.id = k.type_id
     WHERE k.uuid = p_consumer
     ORDER BY a.provider_id, a.resource_class_id;
END
$$;
