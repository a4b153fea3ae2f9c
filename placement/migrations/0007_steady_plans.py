"""Plans that stay good while the tables grow (spec placement, 9.5).

A plan that a connection keeps was made for the tables as they were. Made when they were nearly empty,
it reads them from end to end until the server looks at them again, which is up to a minute later.
"""

from django.db import migrations

PLANS = "SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET jit = off"

# The checks of foreign keys run where the plans above hold: within the functions, not at commit.
CHECK_AT_ONCE = """
DO $$
DECLARE
    v_key record;
BEGIN
    FOR v_key IN
        SELECT conrelid::regclass AS place, conname FROM pg_constraint
         WHERE contype = 'f' AND conrelid IN ('placement_allocation'::regclass,
                                              'placement_consumer'::regclass)
    LOOP
        EXECUTE format('ALTER TABLE %s ALTER CONSTRAINT %I DEFERRABLE INITIALLY {when}',
                       v_key.place, v_key.conname);
    END LOOP;
END
$$
"""

CONSUMER = """
CREATE FUNCTION placement_consumer_allocations(p_consumer uuid) RETURNS TABLE (
    provider text, generation integer, class text, amount bigint, created_at float8,
    consumer_generation integer, project text, owner text, type text
) LANGUAGE plpgsql STABLE PLANS AS $$
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
$$
"""
PROVIDER = """
CREATE FUNCTION placement_provider_allocations(p_provider uuid) RETURNS TABLE (
    generation integer, consumer text, consumer_generation integer, class text, amount bigint,
    created_at float8
) LANGUAGE plpgsql STABLE PLANS AS $$
BEGIN
    RETURN QUERY
    SELECT p.generation, k.uuid::text, k.generation, c.name::text, a.used,
           extract(epoch FROM a.created_at)::float8
      FROM placement_provider p
      LEFT JOIN placement_allocation a ON a.provider_id = p.id
      LEFT JOIN placement_consumer k ON k.id = a.consumer_id
      LEFT JOIN placement_resource_class c ON c.id = a.resource_class_id
     WHERE p.uuid = p_provider
     ORDER BY a.consumer_id, a.resource_class_id;
END
$$
"""


class Migration(migrations.Migration):
    dependencies = [("placement", "0006_host_facts")]

    operations = [
        migrations.RunSQL(
            CHECK_AT_ONCE.replace("{when}", "IMMEDIATE"),
            CHECK_AT_ONCE.replace("{when}", "DEFERRED"),
        ),
        migrations.RunSQL(
            CONSUMER.replace("PLANS", PLANS), "DROP FUNCTION placement_consumer_allocations"
        ),
        migrations.RunSQL(
            PROVIDER.replace("PLANS", PLANS), "DROP FUNCTION placement_provider_allocations"
        ),
    ]
