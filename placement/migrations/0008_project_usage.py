"""What projects use, kept by the functions that write allocations (spec placement, 5.8, 9.3).

A write appends rows and never changes one, so writers of one project do not wait for each other; a
task sums rows up. One new consumer, which is what most writes are about, gets a function of its own
that leaves out what only matters to consumers that held something before.
"""

import django.db.models.deletion
from django.db import migrations, models

# As migration 0005 made them.
REPLACE_BEFORE = """
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
DELETE_BEFORE = """
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
PLANS_BEFORE = "SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET jit = off"

# What consumers hold, by owner and class, and under class NULL how many consumers hold something.
HELD = """
    INSERT INTO placement_project_usage (project_id, user_id, type_id, resource_class_id, used)
    SELECT k.project_id, k.user_id, k.type_id, o.resource_class_id, SIGN CASE
           WHEN grouping(o.resource_class_id) = 1 THEN count(DISTINCT o.consumer_id)
           ELSE sum(o.used) END
      FROM placement_allocation o JOIN placement_consumer k ON k.id = o.consumer_id
     WHERE o.consumer_id = WHOSE
     GROUP BY GROUPING SETS ((k.project_id, k.user_id, k.type_id, o.resource_class_id),
                             (k.project_id, k.user_id, k.type_id));
"""


def held(sign, whose):
    return HELD.replace("SIGN", sign).replace("WHOSE", whose)


# What a consumer takes that this transaction made and that so holds nothing yet: most writes. Each
# statement does a part of what placement_replace_allocations does for any consumers.
ALLOCATE_NEW = """
CREATE FUNCTION placement_allocate_new(
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
    WITH locked AS MATERIALIZED (
        SELECT p.id, p.uuid, p.root_id FROM placement_provider p
         WHERE p.uuid = ANY (a_provider) ORDER BY p.id FOR NO KEY UPDATE)
    SELECT array_agg(DISTINCT root_id),
           (SELECT array_agg(l.id ORDER BY a.place)
              FROM unnest(a_provider) WITH ORDINALITY AS a (uuid, place)
              LEFT JOIN locked l ON l.uuid = a.uuid)
      INTO v_root, v_provider
      FROM locked;
    IF array_position(v_provider, NULL) IS NOT NULL THEN
        RAISE EXCEPTION USING ERRCODE = 'HRA01', MESSAGE = 'unknown provider',
            DETAIL = json_build_array(a_provider[array_position(v_provider, NULL)]);
    END IF;
    SELECT array_agg(c.id ORDER BY a.place) INTO v_class
      FROM unnest(a_class) WITH ORDINALITY AS a (name, place)
      LEFT JOIN placement_resource_class c ON c.name = a.name;
    IF array_position(v_class, NULL) IS NOT NULL THEN
        RAISE EXCEPTION USING ERRCODE = 'HRA02', MESSAGE = 'unknown class',
            DETAIL = json_build_array(a_class[array_position(v_class, NULL)]);
    END IF;
    WITH done AS (
        UPDATE placement_inventory i SET used = i.used + a.amount
          FROM unnest(v_provider, v_class, a_amount) AS a (provider, class, amount)
         WHERE i.provider_id = a.provider AND i.resource_class_id = a.class
           AND a.amount BETWEEN i.min_unit AND i.max_unit AND a.amount % i.step_size = 0
           AND i.used + a.amount <= (i.total - i.reserved) * i.allocation_ratio
        RETURNING 1)
    SELECT count(*) INTO v_done FROM done;
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
    UPDATE placement_provider SET generation = generation + 1, updated_at = statement_timestamp()
     WHERE id = ANY (v_provider);
    INSERT INTO placement_change (root_id, kind) SELECT unnest(v_root), 1;
END
$$
"""
# Begins like the function did: one consumer whose owner is known, but not the consumer itself.
ONE_NEW = """
    IF cardinality(c_uuid) = 1 AND cardinality(a_consumer) > 0 THEN
        SELECT p.id, u.id INTO v_project, v_user
          FROM placement_project p, placement_user u
         WHERE p.external_id = c_project[1] AND u.external_id = c_user[1]
           AND NOT EXISTS (SELECT FROM placement_consumer k WHERE k.uuid = c_uuid[1]);
        IF FOUND AND c_type[1] IS NOT NULL THEN
            SELECT t.id INTO v_type FROM placement_consumer_type t WHERE t.name = c_type[1];
        END IF;
        IF FOUND THEN
            INSERT INTO placement_consumer (uuid, generation, project_id, user_id, type_id)
            VALUES (c_uuid[1], 1, v_project, v_user, v_type)
                ON CONFLICT (uuid) DO NOTHING RETURNING id INTO v_made;
            IF c_generation[1] IS NOT NULL AND v_made IS NOT NULL THEN
                RAISE EXCEPTION USING ERRCODE = 'HRA06', MESSAGE = 'consumer generation',
                    DETAIL = json_build_array(c_uuid[1], NULL, c_generation[1]);
            END IF;
        END IF;
        IF v_made IS NOT NULL THEN
            PERFORM placement_allocate_new(v_made, c_uuid[1], v_project, v_user, v_type,
                                           a_provider, a_class, a_amount, p_actor, p_request);
            RETURN;
        END IF;
    END IF;

    PERFORM placement_lock_consumers("""
GIVE_UP = f"""{held("-", "ANY (v_consumer)")}
    DELETE FROM placement_allocation WHERE consumer_id = ANY (v_consumer);
"""  # noqa: S608 - constants only
TAKE = f"""{held("+", "ANY (v_consumer)")}
    UPDATE placement_provider SET generation"""  # noqa: S608 - constants only
GIVE_ALL_UP = f"""{held("-", "v_consumer.id")}
    DELETE FROM placement_allocation WHERE"""  # noqa: S608 - constants only
VARIABLES = """    v_done bigint;
    v_project bigint;
    v_user bigint;
    v_type bigint;
    v_made bigint;
"""


def changed(function, *changes):
    for old, new in changes:
        if function.count(old) != 1:
            raise AssertionError(old)
        function = function.replace(old, new)
    return function.replace("CREATE FUNCTION", "CREATE OR REPLACE FUNCTION")


REPLACE = changed(
    REPLACE_BEFORE,
    ("    v_done bigint;\n", VARIABLES),
    ("\n    PERFORM placement_lock_consumers(", ONE_NEW),
    ("    DELETE FROM placement_allocation WHERE consumer_id = ANY (v_consumer);\n", GIVE_UP),
    ("    UPDATE placement_provider SET generation", TAKE),
)
DELETE = changed(DELETE_BEFORE, ("    DELETE FROM placement_allocation WHERE", GIVE_ALL_UP))

# Both begin with a lock that lets writers go on, in a statement of its own: the next one then sees
# all that another run left.
REBUILD = """
CREATE FUNCTION placement_rebuild_project_usage() RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    LOCK TABLE placement_project_usage IN SHARE UPDATE EXCLUSIVE MODE;
    WITH gone AS (DELETE FROM placement_project_usage)
    INSERT INTO placement_project_usage (project_id, user_id, type_id, resource_class_id, used)
    SELECT k.project_id, k.user_id, k.type_id, o.resource_class_id,
           CASE WHEN grouping(o.resource_class_id) = 1 THEN count(DISTINCT o.consumer_id)
                ELSE sum(o.used) END
      FROM placement_allocation o JOIN placement_consumer k ON k.id = o.consumer_id
     GROUP BY GROUPING SETS ((k.project_id, k.user_id, k.type_id, o.resource_class_id),
                             (k.project_id, k.user_id, k.type_id));
END
$$
"""
FOLD = """
CREATE FUNCTION placement_fold_project_usage(p_most bigint) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    v_folded bigint;
BEGIN
    LOCK TABLE placement_project_usage IN SHARE UPDATE EXCLUSIVE MODE;
    WITH crowded AS MATERIALIZED (
        SELECT project_id, user_id FROM placement_project_usage
         GROUP BY project_id, user_id HAVING count(*) > p_most),
    gone AS (
        DELETE FROM placement_project_usage u USING crowded c
         WHERE u.project_id = c.project_id AND u.user_id = c.user_id
        RETURNING u.*),
    kept AS (
        INSERT INTO placement_project_usage (project_id, user_id, type_id, resource_class_id, used)
        SELECT project_id, user_id, type_id, resource_class_id, sum(used) FROM gone
         GROUP BY project_id, user_id, type_id, resource_class_id HAVING sum(used) <> 0)
    SELECT count(*) INTO v_folded FROM gone;
    RETURN v_folded;
END
$$
"""


class Migration(migrations.Migration):
    dependencies = [("placement", "0007_steady_plans")]

    operations = [
        migrations.CreateModel(
            name="ProjectUsage",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("used", models.BigIntegerField()),
                (
                    "project",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="+",
                        to="placement.consumerproject",
                    ),
                ),
                (
                    "user",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="+",
                        to="placement.consumeruser",
                    ),
                ),
                (
                    "type",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="+",
                        to="placement.consumertype",
                    ),
                ),
                (
                    "resource_class",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="+",
                        to="placement.resourceclass",
                    ),
                ),
            ],
            options={
                "db_table": "placement_project_usage",
                "indexes": [
                    models.Index(fields=["project", "user"], name="placement_project_usage_idx")
                ],
            },
        ),
        migrations.RunSQL(ALLOCATE_NEW, "DROP FUNCTION placement_allocate_new"),
        migrations.RunSQL(
            REPLACE.replace("PLANS", PLANS_BEFORE),
            REPLACE_BEFORE.replace("PLANS", PLANS_BEFORE).replace("CREATE", "CREATE OR REPLACE", 1),
        ),
        migrations.RunSQL(
            DELETE.replace("PLANS", PLANS_BEFORE),
            DELETE_BEFORE.replace("PLANS", PLANS_BEFORE).replace("CREATE", "CREATE OR REPLACE", 1),
        ),
        migrations.RunSQL(REBUILD, "DROP FUNCTION placement_rebuild_project_usage"),
        migrations.RunSQL(FOLD, "DROP FUNCTION placement_fold_project_usage"),
    ]
