-- Gives back all that a consumer holds and forgets it. Returns false when it holds nothing.
CREATE OR REPLACE FUNCTION placement_delete_allocations(
    p_consumer uuid, p_generation integer, p_actor text, p_request text, p_lock_timeout text
) RETURNS boolean LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET jit = off AS $$
DECLARE
    v_consumer record;
    v_root bigint[];
BEGIN
    PERFORM set_config('lock_timeout', p_lock_timeout, true);
    SELECT k.id, k.generation INTO v_consumer
      FROM placement_consumer k WHERE k.uuid = p_consumer FOR UPDATE;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    IF p_generation IS NOT NULL AND p_generation <> v_consumer.generation THEN
        RAISE EXCEPTION USING ERRCODE = 'HRA06', MESSAGE = 'consumer generation',
            DETAIL = json_build_array(p_consumer, v_consumer.generation, p_generation);
    END IF;
    WITH locked AS MATERIALIZED (
        SELECT p.root_id FROM placement_provider p
         WHERE p.id = ANY (ARRAY(SELECT o.provider_id FROM placement_allocation o
                                  WHERE o.consumer_id = v_consumer.id))
         ORDER BY p.id FOR NO KEY UPDATE)
    SELECT array_agg(DISTINCT root_id) INTO v_root FROM locked;
    UPDATE placement_inventory i SET used = i.used - o.used
      FROM placement_allocation o
     WHERE o.consumer_id = v_consumer.id
       AND i.provider_id = o.provider_id AND i.resource_class_id = o.resource_class_id;
    IF p_request IS NOT NULL THEN
        INSERT INTO placement_allocation_event
            (consumer_uuid, provider_uuid, resource_class, amount, previous, actor, request_id)
        SELECT p_consumer, p.uuid, c.name, 0, o.used, p_actor, p_request
          FROM placement_allocation o
          JOIN placement_provider p ON p.id = o.provider_id
          JOIN placement_resource_class c ON c.id = o.resource_class_id
         WHERE o.consumer_id = v_consumer.id;
    END IF;

    INSERT INTO placement_project_usage (project_id, user_id, type_id, resource_class_id, used)
    SELECT k.project_id, k.user_id, k.type_id, o.resource_class_id, - CASE
           WHEN grouping(o.resource_class_id) = 1 THEN count(DISTINCT o.consumer_id)
           ELSE sum(o.used) END
      FROM placement_allocation o JOIN placement_consumer k ON k.id = o.consumer_id
     WHERE o.consumer_id = v_consumer.id
     GROUP BY GROUPING SETS ((k.project_id, k.user_id, k.type_id, o.resource_class_id),
                             (k.project_id, k.user_id, k.type_id));

    DELETE FROM placement_allocation WHERE consumer_id = v_consumer.id;
    DELETE FROM placement_consumer WHERE id = v_consumer.id;
    INSERT INTO placement_change (root_id, kind) SELECT unnest(v_root), 1;
    RETURN v_root IS NOT NULL;
END
$$;
