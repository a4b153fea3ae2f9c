"""Steady plans for what the host table reads to follow changes (spec scheduling, 14.5).

Told from which transaction on, the server made a plan for every single reading, which took several
times as long as carrying it out, and which it chose by what it knew of tables just filled.
"""

from django.db import migrations

# Rows are found by bitmaps, which only a key can give: an index that is in the order of the answer
# is never read from end to end.
PLANS = """SET plan_cache_mode = force_generic_plan SET enable_seqscan = off
SET enable_indexscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off"""

NEWEST_XID = (1 << 63) - 1
UNSEEN = (
    f"({{row}}.changed_xid BETWEEN p_xmax AND {NEWEST_XID} OR {{row}}.changed_xid = ANY(p_running))"
)

TRACKED = (
    ("host", "id", "NULL::bigint", "NULL", "hosts_host"),
    ("room", "host_id", "NULL", "NULL", "capacity_hostcapacity"),
    ("vm", "id", "c.host_id", "c.openstack_id", "hosts_instance"),
    ("aggregate", "id", "NULL", "NULL", "hosts_aggregate"),
    ("reservation", "id", "NULL", "NULL", "capacity_reservation"),
    ("allocation", "id", "c.reservation_id", "NULL", "capacity_reservationallocation"),
)
READINGS = " UNION ALL ".join(
    f"SELECT '{kind}', c.{key}, {owner}, {word} FROM {table} AS c WHERE {UNSEEN.format(row='c')}"  # noqa: S608
    for kind, key, owner, word, table in TRACKED  # constants only
)

# The log of deletions is looked up table by table: its index begins with the name.
CHANGES = f"""
CREATE FUNCTION capacity_changes(
    p_xmin bigint, p_xmax bigint, p_running bigint[], p_tables text[]
) RETURNS TABLE (kind text, key bigint, owner bigint, word text)
LANGUAGE plpgsql STABLE {PLANS} AS $$
BEGIN
    RETURN QUERY
    SELECT 'now', (pg_current_xact_id_if_assigned() IS NOT NULL)::int::bigint, NULL::bigint,
           pg_current_snapshot()::text
     UNION ALL {READINGS}
     UNION ALL
    SELECT 'deleted', gone.row_id, NULL, gone.table_name
      FROM journal_deletedrow AS gone
     WHERE gone.table_name = ANY(p_tables) AND {UNSEEN.format(row="gone")}
     UNION ALL
    SELECT 'forgotten', NULL, NULL, NULL
     WHERE EXISTS (SELECT FROM journal_prunedlog AS pruned
                    WHERE pruned.log = 'deletions' AND pruned.pruned_xid >= p_xmin);
END
$$
"""  # noqa: S608 - constants only

# Whatever an in-flight row says of a VM decides how the slots that expect it count it.
TOUCHED = f"""
CREATE FUNCTION capacity_touched_reservations(
    p_ids bigint[], p_host_ids bigint[], p_vm_uuids text[]
) RETURNS TABLE (
    id bigint, kind text, is_ready boolean, project_id text, flavor_group_name text, zone text,
    target_host_id bigint, confirmed_host_id bigint, memory_bytes bigint, vcpus bigint,
    blocked_memory_bytes bigint, blocked_vcpus bigint, vm_uuid text, placement_id text
) LANGUAGE plpgsql STABLE {PLANS} AS $$
DECLARE
    touched bigint[];
BEGIN
    touched := ARRAY(
        SELECT unnest(p_ids)
         UNION
        SELECT held.id FROM capacity_reservation AS held
         WHERE held.target_host_id = ANY(p_host_ids)
         UNION
        SELECT held.id FROM capacity_reservation AS held
         WHERE held.confirmed_host_id = ANY(p_host_ids)
         UNION
        SELECT listed.reservation_id FROM capacity_reservationallocation AS listed
         WHERE listed.vm_uuid = ANY(p_vm_uuids || ARRAY(
               SELECT moving.vm_uuid
                 FROM (SELECT held.kind, held.vm_uuid FROM capacity_reservation AS held
                        WHERE held.id = ANY(p_ids) OFFSET 0) AS moving
                WHERE moving.kind = 'in_flight')::text[])
    );
    RETURN QUERY
    SELECT held.id, held.kind::text, held.is_ready IS TRUE, held.project_id::text,
           held.flavor_group_name::text, held.zone::text, held.target_host_id,
           held.confirmed_host_id, held.memory_bytes, held.vcpus, held.blocked_memory_bytes,
           held.blocked_vcpus, held.vm_uuid::text, held.placement_id::text
      FROM capacity_reservation AS held
     WHERE held.id = ANY(touched)
     ORDER BY held.id;
END
$$
"""  # noqa: S608 - constants only

FUNCTIONS = {
    "capacity_changes(bigint, bigint, bigint[], text[])": CHANGES,
    "capacity_touched_reservations(bigint[], bigint[], text[])": TOUCHED,
}


class Migration(migrations.Migration):
    dependencies = [
        ("capacity", "0014_times_of_the_database"),
        ("hosts", "0009_times_of_the_database"),
        ("journal", "0005_times_of_the_database"),
    ]

    operations = [
        migrations.RunSQL(text, f"DROP FUNCTION {name}") for name, text in FUNCTIONS.items()
    ]
