"""The server-side functions that write allocations (spec placement, 9.3).

Lock order: consumers by uuid, then providers by id; nothing locks a consumer after a provider.
"""

from django.db import migrations

# Plans are made once per connection and always use the indexes, whatever the statistics say: arrays
# look so different to the planner that it would plan every statement of every call anew.
PLANS = "SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET jit = off"

# Consumers named by a write exist afterwards and are locked. A consumer that this transaction made
# has generation 0, every other one at least 1.
LOCK_CONSUMERS = """
CREATE FUNCTION placement_lock_consumers(
    c_uuid uuid[], c_project text[], c_user text[], c_type text[]
) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_locked integer;
BEGIN
    INSERT INTO placement_project (external_id)
    SELECT DISTINCT name FROM unnest(c_project) AS name
     WHERE NOT EXISTS (SELECT FROM placement_project p WHERE p.external_id = name)
     ORDER BY name
        ON CONFLICT DO NOTHING;
    INSERT INTO placement_user (external_id)
    SELECT DISTINCT name FROM unnest(c_user) AS name
     WHERE NOT EXISTS (SELECT FROM placement_user u WHERE u.external_id = name)
     ORDER BY name
        ON CONFLICT DO NOTHING;
    IF c_type IS NOT NULL THEN
        INSERT INTO placement_consumer_type (name)
        SELECT DISTINCT name FROM unnest(c_type) AS name
         WHERE NOT EXISTS (SELECT FROM placement_consumer_type t WHERE t.name = name.name)
         ORDER BY name
            ON CONFLICT DO NOTHING;
    END IF;
    LOOP
        INSERT INTO placement_consumer (uuid, project_id, user_id, type_id)
        SELECT c.uuid, p.id, u.id, t.id
          FROM unnest(c_uuid, c_project, c_user, coalesce(c_type, array_fill(NULL::text, ARRAY[cardinality(c_uuid)])))
            AS c (uuid, project, owner, type)
          JOIN placement_project p ON p.external_id = c.project
          JOIN placement_user u ON u.external_id = c.owner
          LEFT JOIN placement_consumer_type t ON t.name = c.type
         WHERE NOT EXISTS (SELECT FROM placement_consumer k WHERE k.uuid = c.uuid)
         ORDER BY c.uuid
            ON CONFLICT (uuid) DO NOTHING;
        PERFORM FROM placement_consumer k WHERE k.uuid = ANY (c_uuid) ORDER BY k.uuid FOR UPDATE;
        GET DIAGNOSTICS v_locked = ROW_COUNT;
        -- A consumer that another transaction deleted while we waited for it is made anew.
        EXIT WHEN v_locked = cardinality(c_uuid);
    END LOOP;
END
$$
"""

# Why a write was refused: the first pair, in order of the request, that breaks a rule.
REFUSE = """
CREATE FUNCTION placement_refuse_allocations(
    a_provider uuid[], a_class text[], a_amount bigint[], v_consumer bigint[]
) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_bad record;
BEGIN
    SELECT a.provider, a.class INTO v_bad
      FROM unnest(a_provider, a_class) WITH ORDINALITY AS a (provider, class, place)
     WHERE NOT EXISTS (
            SELECT FROM placement_inventory i
              JOIN placement_provider p ON p.id = i.provider_id
              JOIN placement_resource_class c ON c.id = i.resource_class_id
             WHERE p.uuid = a.provider AND c.name = a.class)
     ORDER BY a.place LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION USING ERRCODE = 'HRA03', MESSAGE = 'no inventory',
            DETAIL = json_build_array(v_bad.provider, v_bad.class);
    END IF;
    SELECT a.provider, a.class, a.amount, i.min_unit, i.max_unit, i.step_size INTO v_bad
      FROM unnest(a_provider, a_class, a_amount) WITH ORDINALITY AS a (provider, class, amount, place)
      JOIN placement_provider p ON p.uuid = a.provider
      JOIN placement_resource_class c ON c.name = a.class
      JOIN placement_inventory i ON i.provider_id = p.id AND i.resource_class_id = c.id
     WHERE a.amount NOT BETWEEN i.min_unit AND i.max_unit OR a.amount % i.step_size <> 0
     ORDER BY a.place LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION USING ERRCODE = 'HRA04', MESSAGE = 'constraint',
            DETAIL = json_build_array(v_bad.provider, v_bad.class, v_bad.amount, v_bad.min_unit,
                                      v_bad.max_unit, v_bad.step_size);
    END IF;
    SELECT w.provider, w.class, w.wanted, i.used - coalesce(h.held, 0) AS used,
           (i.total - i.reserved) * i.allocation_ratio AS capacity INTO v_bad
      FROM (SELECT a.provider, a.class, sum(a.amount)::bigint AS wanted, min(a.place) AS place
              FROM unnest(a_provider, a_class, a_amount) WITH ORDINALITY
                AS a (provider, class, amount, place)
             GROUP BY a.provider, a.class) w
      JOIN placement_provider p ON p.uuid = w.provider
      JOIN placement_resource_class c ON c.name = w.class
      JOIN placement_inventory i ON i.provider_id = p.id AND i.resource_class_id = c.id
      LEFT JOIN LATERAL (
            SELECT sum(o.used)::bigint AS held FROM placement_allocation o
             WHERE o.consumer_id = ANY (v_consumer)
               AND o.provider_id = p.id AND o.resource_class_id = c.id) h ON true
     WHERE i.used - coalesce(h.held, 0) + w.wanted > (i.total - i.reserved) * i.allocation_ratio
       AND NOT (w.wanted <= coalesce(h.held, 0) AND i.used > 0)
     ORDER BY w.place LIMIT 1;
    RAISE EXCEPTION USING ERRCODE = 'HRA05', MESSAGE = 'capacity',
        DETAIL = json_build_array(v_bad.provider, v_bad.class, v_bad.wanted, v_bad.used,
                                  v_bad.capacity);
END
$$
"""

# Replaces what the consumers hold. One element per consumer in c_*, one per amount in a_*, where
# a_consumer counts from 1. c_generation is NULL when generations are not compared; its elements are
# NULL for consumers that must be new. c_type is NULL when types are kept.
REPLACE = """
CREATE FUNCTION placement_replace_allocations(
    c_uuid uuid[], c_project text[], c_user text[], c_type text[], c_generation integer[],
    a_consumer integer[], a_provider uuid[], a_class text[], a_amount bigint[],
    p_actor text, p_request text, p_lock_timeout text
) RETURNS void LANGUAGE plpgsql PLANS AS $$
DECLARE
    v_bad record;
    v_consumer bigint[];
    v_provider bigint[];
    v_class integer[];
    v_root bigint[];
    v_kept bigint[];
    v_found bigint;
    v_done bigint;
BEGIN
    IF p_lock_timeout IS NOT NULL THEN
        PERFORM set_config('lock_timeout', p_lock_timeout, true);
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
                SELECT n.id FROM placement_provider n WHERE n.uuid = ANY (a_provider)
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
    UPDATE placement_provider SET generation = generation + 1, updated_at = statement_timestamp()
     WHERE id = ANY (v_kept);
    INSERT INTO placement_change (root_id, kind) SELECT unnest(v_root), 1;
END
$$
"""

# Gives back all that a consumer holds and forgets it. Returns false when it holds nothing.
DELETE = """
CREATE FUNCTION placement_delete_allocations(
    p_consumer uuid, p_generation integer, p_actor text, p_request text, p_lock_timeout text
) RETURNS boolean LANGUAGE plpgsql PLANS AS $$
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
    DELETE FROM placement_allocation WHERE consumer_id = v_consumer.id;
    DELETE FROM placement_consumer WHERE id = v_consumer.id;
    INSERT INTO placement_change (root_id, kind) SELECT unnest(v_root), 1;
    RETURN v_root IS NOT NULL;
END
$$
"""


class Migration(migrations.Migration):
    dependencies = [("placement", "0004_allocation_event")]

    operations = [
        migrations.RunSQL(LOCK_CONSUMERS, "DROP FUNCTION placement_lock_consumers"),
        migrations.RunSQL(REFUSE, "DROP FUNCTION placement_refuse_allocations"),
        migrations.RunSQL(
            REPLACE.replace("PLANS", PLANS), "DROP FUNCTION placement_replace_allocations"
        ),
        migrations.RunSQL(
            DELETE.replace("PLANS", PLANS), "DROP FUNCTION placement_delete_allocations"
        ),
    ]
