CREATE OR REPLACE FUNCTION capacity_hold_free(
    p_vm_uuid text, p_names text[], p_memory_bytes bigint, p_vcpus bigint, p_ignored text[],
    p_snapshot text, p_most integer, p_now timestamptz, p_lifetime interval, p_group text,
    p_flavor text, p_project_id text, p_domain_id text, p_creator text, p_request_id text,
    p_user_id text, p_intent text, p_source_host_id bigint, p_placement_id uuid
) RETURNS TABLE (
    start_time timestamptz, host_ids bigint[], names text[], previous bigint[], taken bigint[],
    is_expected boolean
) LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_indexscan = off
SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $$
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
                   room.effective_memory_bytes - room.allocated_memory_bytes
               - CASE WHEN 'committed' = ANY(p_ignored) THEN 0 ELSE room.committed_memory_bytes END
               - CASE WHEN 'failover' = ANY(p_ignored) THEN 0 ELSE room.failover_memory_bytes END
               - CASE WHEN 'in_flight' = ANY(p_ignored) THEN 0 ELSE room.in_flight_memory_bytes END
                   >= p_memory_bytes
                   AND room.effective_vcpus - room.allocated_vcpus
               - CASE WHEN 'committed' = ANY(p_ignored) THEN 0 ELSE room.committed_vcpus END
               - CASE WHEN 'failover' = ANY(p_ignored) THEN 0 ELSE room.failover_vcpus END
               - CASE WHEN 'in_flight' = ANY(p_ignored) THEN 0 ELSE room.in_flight_vcpus END
                   >= p_vcpus AS is_free
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
$$;
