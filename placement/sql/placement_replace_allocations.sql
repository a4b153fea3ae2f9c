-- Replaces what the consumers hold. One element per consumer in c_*, one per amount in a_*, where
-- a_consumer counts from 1. c_generation is NULL when generations are not compared; its elements are
-- NULL for consumers that must be new. c_type is NULL when types are kept.
-- Lock order: consumers by uuid, then providers by id; nothing locks a consumer after a provider.
-- One new consumer, which is what most writes are about, has a function of its own.
-- Plans are made once per connection and always use the indexes, whatever the statistics say: arrays
-- look so different to the planner that it would plan every statement of every call anew.
CREATE OR REPLACE FUNCTION placement_replace_allocations(
    c_uuid uuid[], c_project text[], c_user text[], c_type text[], c_generation integer[],
    a_consumer integer[], a_provider uuid[], a_class text[], a_amount bigint[],
    p_actor text, p_request text, p_lock_timeout text
) RETURNS void LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET jit = off AS $$
DECLARE
    v_bad record;
    v_consumer bigint[];
    v_provider bigint[];
    v_class integer[];
    v_root bigint[];
    v_kept bigint[];
    v_found bigint;
    v_done bigint;
    v_project bigint;
    v_user bigint;
    v_type bigint;
    v_made bigint;
BEGIN
    IF p_lock_timeout IS NOT NULL THEN
        PERFORM set_config('lock_timeout', p_lock_timeout, true);
    END IF;

    IF cardinality(c_uuid) = 1 AND cardinality(a_consumer) > 0 AND c_generation[1] IS NULL THEN
        SELECT p.id, u.id INTO v_project, v_user
          FROM placement_project p, placement_user u
         WHERE p.external_id = c_project[1] AND u.external_id = c_user[1];
        IF FOUND AND c_type[1] IS NOT NULL THEN
            SELECT t.id INTO v_type FROM placement_consumer_type t WHERE t.name = c_type[1];
        END IF;
        IF FOUND THEN
            INSERT INTO placement_consumer (uuid, generation, project_id, user_id, type_id)
            VALUES (c_uuid[1], 1, v_project, v_user, v_type)
                ON CONFLICT (uuid) DO NOTHING RETURNING id INTO v_made;
        END IF;
        IF v_made IS NOT NULL THEN
            PERFORM placement_allocate_new(v_made, c_uuid[1], v_project, v_user, v_type,
                                           a_provider, a_class, a_amount, p_actor, p_request);
            RETURN;
        END IF;
    END IF;

    PERFORM placement_lock_consumers(c_uuid, c_project, c_user, c_type);
    SELECT array_agg(k.id ORDER BY c.place) INTO v_consumer
      FROM unnest(c_uuid) WITH ORDINALITY AS c (uuid, place)
      JOIN placement_consumer k ON k.uuid = c.uuid;
    IF c_generation IS NOT NULL THEN
        SELECT c.uuid, nullif(k.generation, 0) AS stored, c.generation AS given INTO v_bad
          FROM unnest(c_uuid, c_generation) WITH ORDINALITY AS c (uuid, generation, place)
          JOIN placement_consumer k ON k.uuid = c.uuid
         WHERE nullif(k.generation, 0) IS DISTINCT FROM c.generation
         ORDER BY c.place LIMIT 1;
        IF FOUND THEN
            RAISE EXCEPTION USING ERRCODE = 'HRA06', MESSAGE = 'consumer generation',
                DETAIL = json_build_array(v_bad.uuid, v_bad.stored, v_bad.given);
        END IF;
    END IF;

    -- Providers: those named, and those given up.
    WITH locked AS MATERIALIZED (
        SELECT p.id, p.uuid, p.root_id FROM placement_provider p
         WHERE p.id = ANY (ARRAY(
                SELECT n.id FROM placement_provider n
                 WHERE n.uuid = ANY (a_provider) AND n.origin <> 'upstream'
                 UNION
                SELECT o.provider_id FROM placement_allocation o
                 WHERE o.consumer_id = ANY (v_consumer)))
         ORDER BY p.id FOR NO KEY UPDATE)
    SELECT array_agg(DISTINCT root_id),
           (SELECT array_agg(l.id ORDER BY a.place)
              FROM unnest(a_provider) WITH ORDINALITY AS a (uuid, place)
              LEFT JOIN locked l ON l.uuid = a.uuid)
      INTO v_root, v_provider
      FROM locked;
    IF array_position(v_provider, NULL) IS NOT NULL OR
       (v_provider IS NULL AND cardinality(a_provider) > 0) THEN
        RAISE EXCEPTION USING ERRCODE = 'HRA01', MESSAGE = 'unknown provider',
            DETAIL = json_build_array(a_provider[coalesce(array_position(v_provider, NULL), 1)]);
    END IF;
    SELECT array_agg(c.id ORDER BY a.place) INTO v_class
      FROM unnest(a_class) WITH ORDINALITY AS a (name, place)
      LEFT JOIN placement_resource_class c ON c.name = a.name;
    IF array_position(v_class, NULL) IS NOT NULL THEN
        RAISE EXCEPTION USING ERRCODE = 'HRA02', MESSAGE = 'unknown class',
            DETAIL = json_build_array(a_class[array_position(v_class, NULL)]);
    END IF;

    -- Usage: every pair that loses or gains, or nothing.
    WITH given AS MATERIALIZED (
        SELECT a.provider, a.class, sum(a.amount)::bigint AS wanted, min(a.amount) AS smallest,
               max(a.amount) AS largest, array_agg(a.amount) AS amounts
          FROM unnest(v_provider, v_class, a_amount) AS a (provider, class, amount)
         GROUP BY a.provider, a.class),
    held AS MATERIALIZED (
        SELECT o.provider_id AS provider, o.resource_class_id AS class, sum(o.used)::bigint AS used
          FROM placement_allocation o WHERE o.consumer_id = ANY (v_consumer)
         GROUP BY o.provider_id, o.resource_class_id),
    pair AS MATERIALIZED (
        SELECT coalesce(g.provider, h.provider) AS provider, coalesce(g.class, h.class) AS class,
               coalesce(g.wanted, 0) AS wanted, g.smallest, g.largest, g.amounts,
               coalesce(g.wanted, 0) - coalesce(h.used, 0) AS delta
          FROM given g FULL JOIN held h ON h.provider = g.provider AND h.class = g.class),
    done AS (
        UPDATE placement_inventory i SET used = i.used + d.delta
          FROM pair d
         WHERE i.provider_id = d.provider AND i.resource_class_id = d.class
           AND (d.wanted = 0 OR (
                d.smallest >= i.min_unit AND d.largest <= i.max_unit
                AND (i.step_size = 1 OR NOT EXISTS (
                        SELECT FROM unnest(d.amounts) AS n WHERE n % i.step_size <> 0))
                AND (i.used + d.delta <= (i.total - i.reserved) * i.allocation_ratio
                     OR (d.delta <= 0 AND i.used > 0))))
        RETURNING 1)
    SELECT (SELECT count(*) FROM pair), (SELECT count(*) FROM done) INTO v_found, v_done;
    IF v_found <> v_done THEN
        PERFORM placement_refuse_allocations(a_provider, a_class, a_amount, v_consumer);
    END IF;

    IF p_request IS NOT NULL THEN
        INSERT INTO placement_allocation_event
            (consumer_uuid, provider_uuid, resource_class, amount, previous, actor, request_id)
        SELECT k.uuid, p.uuid, c.name, coalesce(a.amount, 0), coalesce(o.used, 0), p_actor, p_request
          FROM (SELECT v_consumer[g.consumer] AS consumer, g.provider, g.class, g.amount
                  FROM unnest(a_consumer, v_provider, v_class, a_amount)
                    AS g (consumer, provider, class, amount)) a
          FULL JOIN (SELECT * FROM placement_allocation WHERE consumer_id = ANY (v_consumer)) o
            ON o.consumer_id = a.consumer AND o.provider_id = a.provider
           AND o.resource_class_id = a.class
          JOIN placement_consumer k ON k.id = coalesce(a.consumer, o.consumer_id)
          JOIN placement_provider p ON p.id = coalesce(a.provider, o.provider_id)
          JOIN placement_resource_class c ON c.id = coalesce(a.class, o.resource_class_id)
         WHERE a.amount IS DISTINCT FROM o.used;
    END IF;

    -- A provider's generation rises when it is named, or when a consumer gives all of it up.
    SELECT array_agg(DISTINCT n.id) INTO v_kept FROM (
        SELECT unnest(v_provider) AS id
         UNION
        SELECT o.provider_id FROM placement_allocation o
         WHERE o.consumer_id = ANY (v_consumer)
           AND o.consumer_id <> ALL (ARRAY(SELECT v_consumer[g] FROM unnest(a_consumer) AS g))) n;

    INSERT INTO placement_project_usage (project_id, user_id, type_id, resource_class_id, used)
    SELECT k.project_id, k.user_id, k.type_id, o.resource_class_id, - CASE
           WHEN grouping(o.resource_class_id) = 1 THEN count(DISTINCT o.consumer_id)
           ELSE sum(o.used) END
      FROM placement_allocation o JOIN placement_consumer k ON k.id = o.consumer_id
     WHERE o.consumer_id = ANY (v_consumer)
     GROUP BY GROUPING SETS ((k.project_id, k.user_id, k.type_id, o.resource_class_id),
                             (k.project_id, k.user_id, k.type_id));

    DELETE FROM placement_allocation WHERE consumer_id = ANY (v_consumer);
    INSERT INTO placement_allocation (consumer_id, provider_id, resource_class_id, used)
    SELECT v_consumer[a.consumer], a.provider, a.class, a.amount
      FROM unnest(a_consumer, v_provider, v_class, a_amount) AS a (consumer, provider, class, amount);
    UPDATE placement_consumer k
       SET generation = k.generation + 1, updated_at = statement_timestamp(),
           project_id = p.id, user_id = u.id, type_id = coalesce(t.id, k.type_id)
      FROM unnest(c_uuid, c_project, c_user, coalesce(c_type, array_fill(NULL::text, ARRAY[cardinality(c_uuid)])))
           WITH ORDINALITY AS c (uuid, project, owner, type, place)
      JOIN placement_project p ON p.external_id = c.project
      JOIN placement_user u ON u.external_id = c.owner
      LEFT JOIN placement_consumer_type t ON t.name = c.type
     WHERE k.uuid = c.uuid AND c.place = ANY (a_consumer);
    DELETE FROM placement_consumer k
     WHERE k.id = ANY (v_consumer)
       AND k.id <> ALL (ARRAY(SELECT v_consumer[g] FROM unnest(a_consumer) AS g));

    INSERT INTO placement_project_usage (project_id, user_id, type_id, resource_class_id, used)
    SELECT k.project_id, k.user_id, k.type_id, o.resource_class_id, + CASE
           WHEN grouping(o.resource_class_id) = 1 THEN count(DISTINCT o.consumer_id)
           ELSE sum(o.used) END
      FROM placement_allocation o JOIN placement_consumer k ON k.id = o.consumer_id
     WHERE o.consumer_id = ANY (v_consumer)
     GROUP BY GROUPING SETS ((k.project_id, k.user_id, k.type_id, o.resource_class_id),
                             (k.project_id, k.user_id, k.type_id));

    UPDATE placement_provider SET generation = generation + 1, updated_at = statement_timestamp()
     WHERE id = ANY (v_kept);
    INSERT INTO placement_change (root_id, kind) SELECT unnest(v_root), 1;
END
$$;
