-- Makes some classes all that a provider has. Returns no row, and has done nothing, where anything is
-- in the way: then the caller finds out step by step what it is. Of the classes, those of which more
-- is allocated than there is now are returned by their places.
CREATE OR REPLACE FUNCTION placement_put_inventories(
    p_uuid uuid, p_generation integer, p_class text[], p_total integer[], p_reserved integer[],
    p_min_unit integer[], p_max_unit integer[], p_step_size integer[],
    p_ratio double precision[], p_lock_timeout text
) RETURNS TABLE (
    generation integer, modified_at double precision, excess integer[], used bigint[]
) LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET jit = off AS $$
#variable_conflict use_column
DECLARE
    v_id bigint;
    v_root bigint;
    v_class integer[];
    v_others integer[];
    v_count bigint;
BEGIN
    PERFORM set_config('lock_timeout', p_lock_timeout, true);
    SELECT p.id, p.root_id INTO v_id, v_root
      FROM placement_provider p
     WHERE p.uuid = p_uuid AND p.origin <> 'upstream' AND p.generation = p_generation
       AND NOT (p.origin = 'host' AND p.inventory_source = 'host')
       FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    SELECT array_agg(c.id ORDER BY a.place) INTO v_class
      FROM unnest(p_class) WITH ORDINALITY AS a (name, place)
      LEFT JOIN placement_resource_class c ON c.name = a.name;
    IF v_class IS NULL OR array_position(v_class, NULL) IS NOT NULL THEN
        RETURN;
    END IF;
    SELECT array_agg(i.resource_class_id) FILTER (WHERE i.resource_class_id <> ALL (v_class)),
           count(*) FILTER (WHERE i.resource_class_id <> ALL (v_class) AND i.used <> 0)
      INTO v_others, v_count
      FROM placement_inventory i WHERE i.provider_id = v_id;
    IF v_count > 0 THEN
        RETURN;
    END IF;
    IF v_others IS NOT NULL THEN
        DELETE FROM placement_inventory i
         WHERE i.provider_id = v_id AND i.resource_class_id = ANY (v_others);
    END IF;

    modified_at := extract(epoch FROM statement_timestamp())::float8;
    WITH written AS (
        UPDATE placement_inventory i
           SET total = n.total, reserved = n.reserved, min_unit = n.min_unit,
               max_unit = n.max_unit, step_size = n.step_size, allocation_ratio = n.ratio,
               updated_at = statement_timestamp()
          FROM unnest(v_class, p_total, p_reserved, p_min_unit, p_max_unit, p_step_size, p_ratio)
               WITH ORDINALITY
               AS n (class, total, reserved, min_unit, max_unit, step_size, ratio, place)
         WHERE i.provider_id = v_id AND i.resource_class_id = n.class
        RETURNING n.place, i.used, i.used > (n.total - n.reserved) * n.ratio AS is_excess)
    SELECT count(*), array_agg(w.place::integer) FILTER (WHERE w.is_excess),
           array_agg(w.used) FILTER (WHERE w.is_excess)
      INTO v_count, excess, used
      FROM written w;
    IF v_count < cardinality(v_class) THEN
        INSERT INTO placement_inventory (provider_id, resource_class_id, total, reserved, min_unit,
                                         max_unit, step_size, allocation_ratio)
        SELECT v_id, n.*
          FROM unnest(v_class, p_total, p_reserved, p_min_unit, p_max_unit, p_step_size, p_ratio)
               AS n (class, total, reserved, min_unit, max_unit, step_size, ratio)
         WHERE NOT EXISTS (SELECT FROM placement_inventory i
                            WHERE i.provider_id = v_id AND i.resource_class_id = n.class)
         ORDER BY n.class;
    END IF;
    INSERT INTO placement_change (root_id, kind) VALUES (v_root, 2);
    UPDATE placement_provider p
       SET generation = p.generation + 1, updated_at = statement_timestamp()
     WHERE p.id = v_id RETURNING p.generation INTO generation;
    RETURN NEXT;
END
$$;
