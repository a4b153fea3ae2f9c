-- What the host table has missed (spec scheduling, 14.5), room figures included. Rows are found by
-- bitmaps, which only a key can give: an index that is in the order of the answer is never read from
-- end to end. Told from which transaction on, the server made a plan for every single reading.
CREATE OR REPLACE FUNCTION capacity_changes(
    p_xmin bigint, p_xmax bigint, p_running bigint[], p_tables text[]
) RETURNS TABLE (kind text, key bigint, owner bigint, word text)
LANGUAGE plpgsql STABLE
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_indexscan = off
SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $$
DECLARE
    v_host bigint[];
    v_room bigint[];
    v_other bigint[];
    v_vm bigint[];
    v_aggregate bigint[];
    v_reservation bigint[];
    v_allocation bigint[];
    v_gone bigint[];
    v_gone_of text[];
    v_count bigint;
BEGIN
    RETURN QUERY
    SELECT 'now', (pg_current_xact_id_if_assigned() IS NOT NULL)::int::bigint, NULL::bigint,
           pg_current_snapshot()::text;
    SELECT count(*),
           array_agg(row_id) FILTER (WHERE table_name = 'hosts_host' AND NOT is_deletion),
           array_agg(row_id) FILTER (WHERE table_name = 'capacity_hostcapacity' AND NOT is_deletion),
           array_agg(row_id) FILTER (WHERE table_name = 'hosts_hostresource' AND NOT is_deletion),
           array_agg(row_id) FILTER (WHERE table_name = 'hosts_instance' AND NOT is_deletion),
           array_agg(row_id) FILTER (WHERE table_name = 'hosts_aggregate' AND NOT is_deletion),
           array_agg(row_id) FILTER (WHERE table_name = 'capacity_reservation' AND NOT is_deletion),
           array_agg(row_id) FILTER (
               WHERE table_name = 'capacity_reservationallocation' AND NOT is_deletion),
           array_agg(row_id) FILTER (WHERE is_deletion AND table_name = ANY (p_tables)),
           array_agg(table_name) FILTER (WHERE is_deletion AND table_name = ANY (p_tables))
      INTO v_count, v_host, v_room, v_other, v_vm, v_aggregate, v_reservation, v_allocation,
           v_gone, v_gone_of
      FROM (SELECT logged.table_name::text, unnest(logged.row_ids) AS row_id, logged.is_deletion
              FROM journal_loggedchange AS logged
             WHERE logged.changed_xid BETWEEN p_xmax AND 9223372036854775807
                OR logged.changed_xid = ANY (p_running)) AS one;
    IF v_count > 0 THEN
        RETURN QUERY
        SELECT 'host', c.id, NULL::bigint, NULL FROM hosts_host AS c WHERE c.id = ANY (v_host)
         UNION ALL
        SELECT 'host', c.host_id, NULL, NULL
          FROM hosts_hostresource AS c WHERE c.id = ANY (v_other)
         UNION ALL
        SELECT 'room', c.host_id, NULL,
               concat_ws(' ', c.effective_memory_bytes, c.effective_vcpus, c.allocated_memory_bytes,
                         c.allocated_vcpus, c.committed_memory_bytes, c.committed_vcpus,
                         c.failover_memory_bytes, c.failover_vcpus, c.in_flight_memory_bytes,
                         c.in_flight_vcpus)
          FROM capacity_hostcapacity AS c WHERE c.id = ANY (v_room)
         UNION ALL
        SELECT 'vm', c.id, c.host_id, c.openstack_id
          FROM hosts_instance AS c WHERE c.id = ANY (v_vm)
         UNION ALL
        SELECT 'aggregate', c.id, NULL, NULL
          FROM hosts_aggregate AS c WHERE c.id = ANY (v_aggregate)
         UNION ALL
        SELECT 'reservation', c.id, NULL, NULL
          FROM capacity_reservation AS c WHERE c.id = ANY (v_reservation)
         UNION ALL
        SELECT 'allocation', c.id, c.reservation_id, NULL
          FROM capacity_reservationallocation AS c WHERE c.id = ANY (v_allocation)
         UNION ALL
        SELECT 'deleted', gone.row_id, NULL, gone.table_name
          FROM unnest(v_gone, v_gone_of) AS gone(row_id, table_name);
    END IF;
    RETURN QUERY
    SELECT 'forgotten', NULL::bigint, NULL::bigint, NULL
      FROM journal_prunedlog AS pruned
     WHERE pruned.log = 'deletions' AND pruned.pruned_xid >= p_xmin;
END
$$;
