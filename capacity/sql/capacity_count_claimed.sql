-- Writes what VMs and holds take of hosts after a write of claims, and returns where it took more than what
-- others' holds leave. A host that is overfull is so for those who held room there before: what
-- takes less of it than before, or no more, is right. Where nothing is held, Placement's inventory
-- alone decides.
--
-- One element per host in each array: what VMs take of it now, what VMs and holds took before, and
-- by how much the holds of slots and of VMs in flight grew since then. What slots and VMs in flight
-- into them block together is promised once, so it counts once, before and after: else a claim would
-- take room of others in its shadow.
CREATE OR REPLACE FUNCTION capacity_count_claimed(
    p_hosts bigint[], p_memory_bytes bigint[], p_vcpus bigint[],
    p_before_memory_bytes bigint[], p_before_vcpus bigint[],
    p_committed_memory_bytes bigint[], p_committed_vcpus bigint[],
    p_in_flight_memory_bytes bigint[], p_in_flight_vcpus bigint[]
) RETURNS TABLE (host_id bigint, resource text, taken bigint, effective bigint, before bigint)
LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET jit = off AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    WITH counted AS (
        SELECT * FROM unnest(p_hosts, p_memory_bytes, p_vcpus, p_before_memory_bytes,
                             p_before_vcpus, p_committed_memory_bytes, p_committed_vcpus,
                             p_in_flight_memory_bytes, p_in_flight_vcpus)
               AS one (host_id, memory_bytes, vcpus, before_memory_bytes, before_vcpus,
                       committed_memory_bytes, committed_vcpus, in_flight_memory_bytes,
                       in_flight_vcpus)),
    written AS (
        UPDATE capacity_hostcapacity AS room
           SET allocated_memory_bytes = counted.memory_bytes, allocated_vcpus = counted.vcpus,
               committed_memory_bytes = room.committed_memory_bytes
                   + counted.committed_memory_bytes,
               committed_vcpus = room.committed_vcpus + counted.committed_vcpus,
               in_flight_memory_bytes = room.in_flight_memory_bytes
                   + counted.in_flight_memory_bytes,
               in_flight_vcpus = room.in_flight_vcpus + counted.in_flight_vcpus
          FROM counted
         WHERE room.host_id = counted.host_id
        RETURNING room.host_id, counted.before_memory_bytes, counted.before_vcpus,
                  room.effective_memory_bytes, room.effective_vcpus, room.in_flight_memory_bytes,
                  room.committed_memory_bytes + room.failover_memory_bytes
                      + room.in_flight_memory_bytes AS held_memory_bytes,
                  room.committed_vcpus + room.failover_vcpus + room.in_flight_vcpus AS held_vcpus,
                  room.allocated_memory_bytes + room.committed_memory_bytes
                      + room.failover_memory_bytes + room.in_flight_memory_bytes AS memory_bytes,
                  room.allocated_vcpus + room.committed_vcpus + room.failover_vcpus
                      + room.in_flight_vcpus AS vcpus)
    SELECT written.host_id, each.resource, each.taken - coalesce(each.twice, 0), each.effective,
           each.before
      FROM written
      LEFT JOIN LATERAL capacity_blocked_twice(written.host_id) AS twice
        ON written.in_flight_memory_bytes > 0
       AND (written.memory_bytes > greatest(effective_memory_bytes, before_memory_bytes)
            OR written.vcpus > greatest(effective_vcpus, before_vcpus))
     CROSS JOIN LATERAL (VALUES
           ('memory_bytes', written.memory_bytes, twice.memory_bytes, held_memory_bytes,
            effective_memory_bytes, before_memory_bytes),
           ('vcpus', written.vcpus, twice.vcpus, held_vcpus, effective_vcpus, before_vcpus)
           ) AS each (resource, taken, twice, held, effective, before)
     WHERE each.held > 0
       AND each.taken - coalesce(each.twice, 0) > greatest(each.effective, each.before)
     ORDER BY written.host_id, each.resource;
END
$$;
