"""Look up what changed in the log of changes instead of in an index of each table."""

from django.db import migrations, models

import journal.models

# Rows are found by bitmaps, which only a key can give: an index that is in the order of the answer
# is never read from end to end.
PLANS = """SET plan_cache_mode = force_generic_plan SET enable_seqscan = off
SET enable_indexscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off"""

NEWEST_XID = (1 << 63) - 1
UNSEEN = (
    f"({{row}}.changed_xid BETWEEN p_xmax AND {NEWEST_XID} OR {{row}}.changed_xid = ANY(p_running))"
)

FIGURES = ", ".join(
    f"c.{kind}_{part}"
    for kind in ("effective", "allocated", "committed", "failover", "in_flight")
    for part in ("memory_bytes", "vcpus")
)
#: Kind of change, key, owner, word and table, as the host table reads them.
TRACKED = (
    ("host", "id", "NULL::bigint", "NULL", "hosts_host"),
    ("room", "host_id", "NULL", f"concat_ws(' ', {FIGURES})", "capacity_hostcapacity"),
    ("vm", "id", "c.host_id", "c.openstack_id", "hosts_instance"),
    ("aggregate", "id", "NULL", "NULL", "hosts_aggregate"),
    ("reservation", "id", "NULL", "NULL", "capacity_reservation"),
    ("allocation", "id", "c.reservation_id", "NULL", "capacity_reservationallocation"),
)


def changes_by_index() -> str:
    """Return the function as it was, which looked up each table by its index."""
    readings = " UNION ALL ".join(
        f"SELECT '{kind}', c.{key}, {owner}, {word} FROM {table} AS c "  # noqa: S608
        f"WHERE {UNSEEN.format(row='c')}"
        for kind, key, owner, word, table in TRACKED  # constants only
    )
    # The log of deletions is looked up table by table: its index begins with the name.
    return f"""
CREATE OR REPLACE FUNCTION capacity_changes(
    p_xmin bigint, p_xmax bigint, p_running bigint[], p_tables text[]
) RETURNS TABLE (kind text, key bigint, owner bigint, word text)
LANGUAGE plpgsql STABLE {PLANS} AS $$
BEGIN
    RETURN QUERY
    SELECT 'now', (pg_current_xact_id_if_assigned() IS NOT NULL)::int::bigint, NULL::bigint,
           pg_current_snapshot()::text
     UNION ALL {readings}
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


KEYS = ", ".join(
    f"array_agg(row_id) FILTER (WHERE table_name = '{table}' AND NOT is_deletion)"
    for *_, table in TRACKED
)
READINGS = " UNION ALL ".join(
    f"SELECT '{kind}', c.{key}, {owner}, {word} FROM {table} AS c WHERE c.id = ANY (v_{kind})"  # noqa: S608
    for kind, key, owner, word, table in TRACKED  # constants only
)
CHANGES_BY_LOG = f"""
CREATE OR REPLACE FUNCTION capacity_changes(
    p_xmin bigint, p_xmax bigint, p_running bigint[], p_tables text[]
) RETURNS TABLE (kind text, key bigint, owner bigint, word text)
LANGUAGE plpgsql STABLE {PLANS} AS $$
DECLARE
    {" ".join(f"v_{kind} bigint[];" for kind, *_ in TRACKED)}
    v_gone bigint[];
    v_gone_of text[];
    v_count bigint;
BEGIN
    RETURN QUERY
    SELECT 'now', (pg_current_xact_id_if_assigned() IS NOT NULL)::int::bigint, NULL::bigint,
           pg_current_snapshot()::text;
    SELECT count(*), {KEYS},
           array_agg(row_id) FILTER (WHERE is_deletion AND table_name = ANY (p_tables)),
           array_agg(table_name) FILTER (WHERE is_deletion AND table_name = ANY (p_tables))
      INTO v_count, {", ".join(f"v_{kind}" for kind, *_ in TRACKED)}, v_gone, v_gone_of
      FROM (SELECT logged.table_name::text, unnest(logged.row_ids) AS row_id, logged.is_deletion
              FROM journal_loggedchange AS logged WHERE {UNSEEN.format(row="logged")}) AS one;
    IF v_count > 0 THEN
        RETURN QUERY {READINGS} UNION ALL
        SELECT 'deleted', gone.row_id, NULL, gone.table_name
          FROM unnest(v_gone, v_gone_of) AS gone(row_id, table_name);
    END IF;
    RETURN QUERY
    SELECT 'forgotten', NULL::bigint, NULL::bigint, NULL
      FROM journal_prunedlog AS pruned
     WHERE pruned.log = 'deletions' AND pruned.pruned_xid >= p_xmin;
END
$$
"""  # noqa: S608 - constants only

TABLES = ("hostcapacity", "reservation", "reservationallocation")
ROOM_FOR_UPDATES = {"capacity_hostcapacity": 70, "capacity_reservation": 85}


class Migration(migrations.Migration):
    dependencies = [
        ("capacity", "0021_calls_in_fewer_messages"),
        ("hosts", "0012_log_of_changes"),
    ]

    operations = [
        *(
            migrations.AlterField(
                model_name=model,
                name="changed_xid",
                field=models.BigIntegerField(
                    db_default=journal.models.CurrentTransactionID(), editable=False
                ),
            )
            for model in TABLES
        ),
        *(
            migrations.RunSQL(
                f"ALTER TABLE {table} SET (fillfactor = {percent})",
                f"ALTER TABLE {table} RESET (fillfactor)",
            )
            for table, percent in ROOM_FOR_UPDATES.items()
        ),
        *(
            migrations.RunSQL(
                f"SELECT journal_follow('capacity_{model}')",
                f"SELECT journal_unfollow('capacity_{model}')",
            )
            for model in TABLES
        ),
        migrations.RunSQL(CHANGES_BY_LOG, changes_by_index()),
    ]
