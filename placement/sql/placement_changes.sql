-- Nobody asks it any more but the release before (docs/contributing.md, Migrations).
-- Rows of the log that a snapshot does not show: those of transactions from p_from on and of those
-- that were running. Parts: 0 the present moment, 1 a changed tree, 2 an allocated amount of it.
-- Told how much of the log a request wants to see, the server made a plan for every single request,
-- which took eight times as long as carrying it out.
CREATE OR REPLACE FUNCTION placement_changes(p_from bigint, p_running bigint[]) RETURNS TABLE (
    part integer, moment text, kind integer, key bigint, class_id integer, used bigint
) LANGUAGE plpgsql STABLE
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET jit = off AS $$
BEGIN
    RETURN QUERY
    WITH changed AS MATERIALIZED (
        SELECT c.root_id, max(c.kind)::integer AS kind
          FROM placement_change c
         WHERE c.xid BETWEEN p_from AND 9223372036854775806 OR c.xid = ANY (p_running)
         GROUP BY c.root_id
    )
    SELECT 0, pg_current_snapshot()::text, NULL::integer, NULL::bigint, NULL::integer, NULL::bigint
     UNION ALL
    SELECT 1, NULL, d.kind, d.root_id, NULL, NULL FROM changed d
     UNION ALL
    SELECT 2, NULL, NULL, i.provider_id, i.resource_class_id, i.used
      FROM changed d
     CROSS JOIN LATERAL (
            SELECT v.provider_id, v.resource_class_id, v.used
              FROM placement_provider p
              JOIN placement_inventory v ON v.provider_id = p.id
             WHERE p.root_id = d.root_id
            OFFSET 0) i
     WHERE d.kind = 1;
END
$$;
