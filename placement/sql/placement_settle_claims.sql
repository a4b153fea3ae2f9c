-- Settles in the ledger what this transaction wrote of consumers (ADR 0029), and counts what VMs
-- take of the hosts concerned. Returns where it took room that is held for others, and the failover
-- reservations that evacuated VMs use now, as rows without a host. Rows are found one by one by
-- their keys (OFFSET 0 keeps it that way), whatever the server knows of the tables. Nothing is kept in
-- memory to be looked up again: to prepare that takes longer than the few rows of a claim.
CREATE OR REPLACE FUNCTION placement_settle_claims(p_consumers text[])
RETURNS TABLE (
    host_id bigint, resource text, taken bigint, effective bigint, before bigint,
    failover_id bigint
) LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET jit = off
SET enable_hashjoin = off SET enable_mergejoin = off
SET enable_memoize = off SET enable_material = off AS $$
#variable_conflict use_column
DECLARE
    v_changed bigint[];
    v_pieces jsonb := '[]';
    v_one record;
    v_hosts bigint[] := '{}';
    v_before_memory_bytes bigint[] := '{}';
    v_before_vcpus bigint[] := '{}';
    v_committed_memory_bytes bigint[] := '{}';
    v_committed_vcpus bigint[] := '{}';
    v_in_flight_memory_bytes bigint[] := '{}';
    v_in_flight_vcpus bigint[] := '{}';
    v_memory_bytes bigint[];
    v_vcpus bigint[];
BEGIN
    v_changed := ARRAY(
        SELECT host.id
          FROM (SELECT change.root_id FROM placement_change AS change
                 WHERE change.xid = pg_current_xact_id()::text::bigint OFFSET 0) AS change
          JOIN LATERAL (
               SELECT root.uuid FROM placement_provider AS root
                WHERE root.id = change.root_id AND root.origin = 'host' OFFSET 0) AS root ON true
          JOIN LATERAL (
               SELECT host.id FROM hosts_host AS host
                WHERE hosts_provider_uuid(host.provider_uuid, host.openstack_id) = root.uuid
               OFFSET 0) AS host ON true);

    FOR v_one IN SELECT * FROM placement_claimed(p_consumers) LOOP
        v_pieces := v_pieces || to_jsonb(v_one);
    END LOOP;

    FOR v_one IN
        SELECT * FROM capacity_settle_claims(p_consumers, v_changed, v_pieces)
    LOOP
        IF v_one.failover_id IS NOT NULL THEN
            failover_id := v_one.failover_id;
            RETURN NEXT;
            CONTINUE;
        END IF;
        v_hosts := v_hosts || v_one.host_id;
        v_before_memory_bytes := v_before_memory_bytes || v_one.memory_bytes;
        v_before_vcpus := v_before_vcpus || v_one.vcpus;
        v_committed_memory_bytes := v_committed_memory_bytes || v_one.committed_memory_bytes;
        v_committed_vcpus := v_committed_vcpus || v_one.committed_vcpus;
        v_in_flight_memory_bytes := v_in_flight_memory_bytes || v_one.in_flight_memory_bytes;
        v_in_flight_vcpus := v_in_flight_vcpus || v_one.in_flight_vcpus;
    END LOOP;
    IF cardinality(v_hosts) = 0 THEN
        RETURN;
    END IF;

    SELECT array_agg(coalesce(vms.memory_bytes, 0) ORDER BY one.place),
           array_agg(coalesce(vms.vcpus, 0) ORDER BY one.place)
      INTO v_memory_bytes, v_vcpus
      FROM unnest(v_hosts) WITH ORDINALITY AS one (host_id, place)
      LEFT JOIN placement_allocated(v_hosts) AS vms ON vms.host_id = one.host_id;
    RETURN QUERY
    SELECT eaten.host_id, eaten.resource, eaten.taken, eaten.effective, eaten.before, NULL::bigint
      FROM capacity_count_claimed(
               v_hosts, v_memory_bytes, v_vcpus, v_before_memory_bytes, v_before_vcpus,
               v_committed_memory_bytes, v_committed_vcpus, v_in_flight_memory_bytes,
               v_in_flight_vcpus) AS eaten;
END
$$;
