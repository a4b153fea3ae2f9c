-- What a consumer takes that this transaction made and that so holds nothing yet: most writes. Each
-- statement does a part of what placement_replace_allocations does for any consumers.
CREATE OR REPLACE FUNCTION placement_allocate_new(
    p_consumer bigint, p_uuid uuid, p_project bigint, p_user bigint, p_type bigint,
    a_provider uuid[], a_class text[], a_amount bigint[], p_actor text, p_request text
) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_provider bigint[];
    v_class integer[];
    v_root bigint[];
    v_found bigint;
    v_done bigint;
BEGIN
    IF a_provider[1] = ALL (a_provider) THEN  -- most: what locks it writes it as well
        UPDATE placement_provider p
           SET generation = p.generation + 1, updated_at = statement_timestamp()
         WHERE p.uuid = a_provider[1] AND p.origin <> 'upstream'
        RETURNING ARRAY[p.root_id], array_fill(p.id, ARRAY[cardinality(a_provider)])
             INTO v_root, v_provider;
        v_provider := coalesce(v_provider, ARRAY[NULL::bigint]);
    ELSE
        WITH locked AS MATERIALIZED (
            SELECT p.id, p.uuid, p.root_id FROM placement_provider p
             WHERE p.uuid = ANY (a_provider) AND p.origin <> 'upstream'
             ORDER BY p.id FOR NO KEY UPDATE)
        SELECT array_agg(DISTINCT root_id),
               (SELECT array_agg(l.id ORDER BY a.place)
                  FROM unnest(a_provider) WITH ORDINALITY AS a (uuid, place)
                  LEFT JOIN locked l ON l.uuid = a.uuid)
          INTO v_root, v_provider
          FROM locked;
        UPDATE placement_provider
           SET generation = generation + 1, updated_at = statement_timestamp()
         WHERE id = ANY (v_provider);
    END IF;
    IF array_position(v_provider, NULL) IS NOT NULL THEN
        RAISE EXCEPTION USING ERRCODE = 'HRA01', MESSAGE = 'unknown provider',
            DETAIL = json_build_array(a_provider[array_position(v_provider, NULL)]);
    END IF;
    -- Those of nearly all amounts are known (placement.models.ResourceClass).
    FOR place IN 1 .. cardinality(a_class) LOOP
        v_class[place] := CASE a_class[place]
            WHEN 'VCPU' THEN 0 WHEN 'MEMORY_MB' THEN 1 WHEN 'DISK_GB' THEN 2 END;
    END LOOP;
    IF array_position(v_class, NULL) IS NOT NULL THEN
        SELECT array_agg(c.id ORDER BY a.place) INTO v_class
          FROM unnest(a_class) WITH ORDINALITY AS a (name, place)
          LEFT JOIN placement_resource_class c ON c.name = a.name;
        IF array_position(v_class, NULL) IS NOT NULL THEN
            RAISE EXCEPTION USING ERRCODE = 'HRA02', MESSAGE = 'unknown class',
                DETAIL = json_build_array(a_class[array_position(v_class, NULL)]);
        END IF;
    END IF;
    UPDATE placement_inventory i SET used = i.used + a.amount
      FROM unnest(v_provider, v_class, a_amount) AS a (provider, class, amount)
     WHERE i.provider_id = a.provider AND i.resource_class_id = a.class
       AND a.amount BETWEEN i.min_unit AND i.max_unit AND a.amount % i.step_size = 0
       AND i.used + a.amount <= (i.total - i.reserved) * i.allocation_ratio;
    GET DIAGNOSTICS v_done = ROW_COUNT;
    IF v_done <> cardinality(a_amount) THEN
        PERFORM placement_refuse_allocations(a_provider, a_class, a_amount, ARRAY[p_consumer]);
    END IF;
    IF p_request IS NOT NULL THEN
        INSERT INTO placement_allocation_event
            (consumer_uuid, provider_uuid, resource_class, amount, previous, actor, request_id)
        SELECT p_uuid, a.provider, a.class, a.amount, 0, p_actor, p_request
          FROM unnest(a_provider, a_class, a_amount) AS a (provider, class, amount);
    END IF;
    INSERT INTO placement_allocation (consumer_id, provider_id, resource_class_id, used)
    SELECT p_consumer, a.provider, a.class, a.amount
      FROM unnest(v_provider, v_class, a_amount) AS a (provider, class, amount);
    INSERT INTO placement_project_usage (project_id, user_id, type_id, resource_class_id, used)
    SELECT p_project, p_user, p_type, a.class, a.amount
      FROM unnest(v_class || NULL::integer, a_amount || 1::bigint) AS a (class, amount);
    INSERT INTO placement_change (root_id, kind) SELECT unnest(v_root), 1;
END
$$;
