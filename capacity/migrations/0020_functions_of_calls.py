"""Steady plans for what a call of the scheduler asks and holds (spec scheduling, 14, 16.2).

Told which hosts and which VM, the server made a plan for every single statement of a call, which
took twice as long as carrying it out. Room figures come with the changes, and VMs with the
reservations that they are in, so that a call follows others in two questions.
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

FIGURES = ", ".join(
    f"c.{kind}_{part}"
    for kind in ("effective", "allocated", "committed", "failover", "in_flight")
    for part in ("memory_bytes", "vcpus")
)


def changes(figures_of_room: str) -> str:
    """Return the function that tells what a snapshot does not show."""
    tracked = (
        ("host", "id", "NULL::bigint", "NULL", "hosts_host"),
        ("room", "host_id", "NULL", figures_of_room, "capacity_hostcapacity"),
        ("vm", "id", "c.host_id", "c.openstack_id", "hosts_instance"),
        ("aggregate", "id", "NULL", "NULL", "hosts_aggregate"),
        ("reservation", "id", "NULL", "NULL", "capacity_reservation"),
        ("allocation", "id", "c.reservation_id", "NULL", "capacity_reservationallocation"),
    )
    readings = " UNION ALL ".join(
        f"SELECT '{kind}', c.{key}, {owner}, {word} FROM {table} AS c "  # noqa: S608
        f"WHERE {UNSEEN.format(row='c')}"
        for kind, key, owner, word, table in tracked  # constants only
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


# Whatever an in-flight row says of a VM decides how the slots that expect it count it.
# The function without VMs stays for the release before.
TOUCHED = f"""
CREATE FUNCTION capacity_touched_with_vms(
    p_ids bigint[], p_host_ids bigint[], p_vm_uuids text[]
) RETURNS TABLE (
    id bigint, kind text, is_ready boolean, project_id text, flavor_group_name text, zone text,
    target_host_id bigint, confirmed_host_id bigint, memory_bytes bigint, vcpus bigint,
    blocked_memory_bytes bigint, blocked_vcpus bigint, vm_uuid text, placement_id text, vms text
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
           held.blocked_vcpus, held.vm_uuid::text, held.placement_id::text,
           (SELECT json_agg(json_build_array(vm.id, vm.reservation_id, vm.vm_uuid, vm.memory_bytes,
                                             vm.vcpus, vm.state = 'expected'))::text
              FROM capacity_reservationallocation AS vm WHERE vm.reservation_id = held.id)
      FROM capacity_reservation AS held
     WHERE held.id = ANY(touched)
     ORDER BY held.id;
END
$$
"""  # noqa: S608 - constants only

MARK = "count(*) || '/' || coalesce(sum(hashint8extended(id, changed_xid)), 0)"
MARKS = {
    "capacity_pipeline_mark": """
    RETURN QUERY SELECT true, concat_ws('|',
        (SELECT MARK FROM capacity_pipeline),
        (SELECT MARK FROM capacity_schedulingknowledge
          WHERE expires_at IS NULL OR expires_at > statement_timestamp()));
""",
    "capacity_group_mark": """
    RETURN QUERY SELECT (SELECT snapshot.is_ready FROM capacity_flavorgroupsnapshot AS snapshot),
        concat_ws('|',
        (SELECT content_hash FROM capacity_flavorgroupsnapshot),
        (SELECT MARK FROM capacity_flavorgroup),
        (SELECT count(*) || '/' || coalesce(sum(hashint8extended(id, 0)), 0)
           FROM capacity_flavorgroupmember),
        (SELECT MARK FROM hosts_flavor));
""",
}
MARK_FUNCTIONS = {
    f"{name}()": f"""
CREATE FUNCTION {name}() RETURNS TABLE (is_ready boolean, mark text)
LANGUAGE plpgsql STABLE AS $$
BEGIN{body.replace(" MARK ", f" {MARK} ")}END
$$
"""
    for name, body in MARKS.items()
}

FREE = {
    part: f"room.effective_{part} - room.allocated_{part}"
    + "".join(
        f"\n               - CASE WHEN '{kind}' = ANY(p_ignored) THEN 0 ELSE room.{kind}_{part} END"
        for kind in ("committed", "failover", "in_flight")
    )
    for part in ("memory_bytes", "vcpus")
}
# Rooms are locked by primary key: those of the candidates, and those that the VM held before. Of a
# VM that holds rows nothing more is done: they are ended first. Then the best hosts are taken if
# all of them have room without what slots give, as nearly always; else none, since a host that a
# slot makes room on may come before one of them. A host that changed since the snapshot, or one of
# its aggregates, was filtered by facts that may not hold now (spec scheduling, 16.2).
HOLD_FREE = f"""
CREATE FUNCTION capacity_hold_free(
    p_vm_uuid text, p_names text[], p_memory_bytes bigint, p_vcpus bigint, p_ignored text[],
    p_snapshot text, p_most integer, p_now timestamptz, p_lifetime interval, p_group text,
    p_flavor text, p_project_id text, p_domain_id text, p_creator text, p_request_id text,
    p_user_id text, p_intent text, p_source_host_id bigint, p_placement_id uuid
) RETURNS TABLE (
    start_time timestamptz, host_ids bigint[], names text[], previous bigint[], taken bigint[],
    is_expected boolean
) LANGUAGE plpgsql {PLANS} AS $$
#variable_conflict use_column
DECLARE
    v_previous bigint[];
    v_before bigint[];
    v_ids bigint[];
    v_names text[];
    v_taken bigint[];
    v_start timestamptz;
BEGIN
    SELECT array_agg(held.id), array_agg(held.target_host_id) INTO v_previous, v_before
      FROM capacity_reservation AS held
     WHERE held.kind = 'in_flight' AND held.vm_uuid = p_vm_uuid;
    v_ids := ARRAY(SELECT host.id FROM hosts_host AS host WHERE host.name = ANY(p_names));
    PERFORM FROM capacity_hostcapacity AS room
      WHERE room.host_id = ANY(v_ids || v_before) ORDER BY room.id FOR NO KEY UPDATE;
    v_start := coalesce(p_now, clock_timestamp());
    SELECT array_agg(host.id ORDER BY array_position(p_names, host.name::text)),
           array_agg(host.name::text ORDER BY array_position(p_names, host.name::text))
      INTO v_ids, v_names
      FROM hosts_host AS host
     WHERE host.id = ANY(v_ids) AND host.name = ANY(p_names)
       AND EXISTS (SELECT FROM capacity_hostcapacity AS room WHERE room.host_id = host.id);
    IF v_previous IS NULL AND v_ids IS NOT NULL THEN
        WITH best AS (
            SELECT asked.host_id, asked.position, host.zone,
                   {FREE["memory_bytes"]} >= p_memory_bytes
                   AND {FREE["vcpus"]} >= p_vcpus AS is_free
              FROM unnest(v_ids) WITH ORDINALITY AS asked(host_id, position)
              JOIN capacity_hostcapacity AS room ON room.host_id = asked.host_id
              JOIN hosts_host AS host ON host.id = asked.host_id
             WHERE p_snapshot = ''
                OR pg_visible_in_snapshot(host.changed_xid::text::xid8,
                                          nullif(p_snapshot, '')::pg_snapshot)
                   AND NOT EXISTS (
                       SELECT FROM hosts_aggregate AS joined
                        WHERE joined.uuid = ANY(host.aggregate_uuids)
                          AND NOT pg_visible_in_snapshot(joined.changed_xid::text::xid8,
                                                         nullif(p_snapshot, '')::pg_snapshot))
             ORDER BY asked.position
             LIMIT p_most
        ), fitting AS (
            SELECT host_id, position, zone FROM best WHERE (SELECT bool_and(is_free) FROM best)
        ), taken AS (
            UPDATE capacity_hostcapacity AS room
               SET in_flight_memory_bytes = room.in_flight_memory_bytes + p_memory_bytes,
                   in_flight_vcpus = room.in_flight_vcpus + p_vcpus
              FROM fitting
             WHERE room.host_id = fitting.host_id
            RETURNING room.host_id, fitting.position, fitting.zone
        ), made AS (
            INSERT INTO capacity_reservation (
                uuid, kind, scheduling_domain, zone, flavor_group_name, resource_name, project_id,
                domain_id, memory_bytes, vcpus, blocked_memory_bytes, blocked_vcpus,
                target_host_id, start_time, end_time, creator, creator_request_id,
                parent_generation, observed_parent_generation, generation, ready_reason,
                ready_message, vm_uuid, user_id, intent, source_host_id, placement_id)
            SELECT gen_random_uuid(), 'in_flight', 'nova', taken.zone, p_group, p_flavor,
                   p_project_id, p_domain_id, p_memory_bytes, p_vcpus, p_memory_bytes, p_vcpus,
                   taken.host_id, v_start, v_start + p_lifetime, p_creator, p_request_id, 0, 0, 1,
                   '', '', p_vm_uuid, p_user_id, p_intent, p_source_host_id, p_placement_id
              FROM taken ORDER BY taken.position
            RETURNING target_host_id
        )
        SELECT array_agg(made.target_host_id) INTO v_taken FROM made;
    END IF;
    RETURN QUERY SELECT v_start, v_ids, v_names, v_previous, v_taken,
        v_taken IS NOT NULL AND EXISTS (
            SELECT FROM capacity_reservationallocation AS vm
             WHERE vm.vm_uuid = p_vm_uuid AND vm.state = 'expected');
END
$$
"""  # noqa: S608 - constants only

FUNCTIONS = {
    "capacity_touched_with_vms(bigint[], bigint[], text[])": TOUCHED,
    **MARK_FUNCTIONS,
    "capacity_hold_free(text, text[], bigint, bigint, text[], text, integer, timestamptz, "
    "interval, text, text, text, text, text, text, text, text, bigint, uuid)": HOLD_FREE,
}


class Migration(migrations.Migration):
    dependencies = [("capacity", "0019_invalid_resources")]

    operations = [
        migrations.RunSQL(
            changes(f"concat_ws(' ', {FIGURES})"),
            changes("NULL"),
        ),
        *(migrations.RunSQL(text, f"DROP FUNCTION {name}") for name, text in FUNCTIONS.items()),
    ]
