"""What projects use, kept by the functions that write allocations (spec placement, 5.8, 9.3).

A write appends rows and never changes one, so writers of one project do not wait for each other; a
task sums rows up. The same functions leave out, for consumers that are new, what only matters to
those that held something before.
"""

from importlib import import_module

import django.db.models.deletion
from django.db import migrations, models

before = import_module("placement.migrations.0005_allocation_functions")

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


GIVE_UP = f"""{held("-", "ANY (v_consumer)")}
    DELETE FROM placement_allocation WHERE consumer_id = ANY (v_consumer);
    END IF;
"""  # noqa: S608 - constants only
TAKE = f"""     WHERE k.uuid = c.uuid AND c.place = ANY (a_consumer);
    END IF;
{held("+", "ANY (v_consumer)")}
    IF cardinality(c_uuid) > 1 OR cardinality(a_consumer) = 0 THEN
    DELETE FROM placement_consumer k
"""  # noqa: S608 - constants only
GIVE_ALL_UP = f"""{held("-", "v_consumer.id")}
    DELETE FROM placement_allocation WHERE"""  # noqa: S608 - constants only


def changed(function, *changes):
    for old, new in changes:
        if function.count(old) != 1:
            raise AssertionError(old)
        function = function.replace(old, new)
    return function.replace("CREATE FUNCTION", "CREATE OR REPLACE FUNCTION")


REPLACE = changed(
    before.REPLACE,
    ("    v_done bigint;\n", "    v_done bigint;\n    v_are_new boolean;\n"),
    (
        "    SELECT array_agg(k.id ORDER BY c.place) INTO v_consumer\n",
        """    SELECT array_agg(k.id ORDER BY c.place), bool_and(k.generation = 0)
      INTO v_consumer, v_are_new
""",
    ),
    (
        "    IF p_request IS NOT NULL THEN\n",
        """    -- Consumers that are new held nothing, and their owners are right already.
    IF p_request IS NOT NULL AND v_are_new THEN
        INSERT INTO placement_allocation_event
            (consumer_uuid, provider_uuid, resource_class, amount, previous, actor, request_id)
        SELECT c_uuid[a.consumer], a.provider, a.class, a.amount, 0, p_actor, p_request
          FROM unnest(a_consumer, a_provider, a_class, a_amount)
            AS a (consumer, provider, class, amount);
    ELSIF p_request IS NOT NULL THEN
""",
    ),
    (
        "    SELECT array_agg(DISTINCT n.id) INTO v_kept FROM (\n",
        """    IF v_are_new THEN
        v_kept := v_provider;
    ELSE
    SELECT array_agg(DISTINCT n.id) INTO v_kept FROM (
""",
    ),
    (
        "    DELETE FROM placement_allocation WHERE consumer_id = ANY (v_consumer);\n",
        GIVE_UP,
    ),
    (
        "    UPDATE placement_consumer k\n       SET generation",
        """    IF v_are_new THEN
        UPDATE placement_consumer SET generation = 1 WHERE id = ANY (v_consumer);
    ELSE
    UPDATE placement_consumer k
       SET generation""",
    ),
    (
        """     WHERE k.uuid = c.uuid AND c.place = ANY (a_consumer);
    DELETE FROM placement_consumer k
""",
        TAKE,
    ),
    (
        "    UPDATE placement_provider SET generation",
        "    END IF;\n    UPDATE placement_provider SET generation",
    ),
)
DELETE = changed(
    before.DELETE,
    (
        "    DELETE FROM placement_allocation WHERE",
        GIVE_ALL_UP,
    ),
)

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
        migrations.RunSQL(
            REPLACE.replace("PLANS", before.PLANS),
            before.REPLACE.replace("PLANS", before.PLANS).replace("CREATE", "CREATE OR REPLACE", 1),
        ),
        migrations.RunSQL(
            DELETE.replace("PLANS", before.PLANS),
            before.DELETE.replace("PLANS", before.PLANS).replace("CREATE", "CREATE OR REPLACE", 1),
        ),
        migrations.RunSQL(REBUILD, "DROP FUNCTION placement_rebuild_project_usage"),
        migrations.RunSQL(FOLD, "DROP FUNCTION placement_fold_project_usage"),
    ]
