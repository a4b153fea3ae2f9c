-- Writes what VMs and holds take of hosts after a write of claims, and returns where it took more than what
-- others' holds leave. A host that is overfull is so for those who held room there before: what
-- takes less of it than before, or no more, is right. Where nothing is held, Placement's inventory
-- alone decides.
--
-- One element per host in each array: what VMs take of it now, what VMs and holds took before, and
-- by how much the holds of slots and of VMs in flight grew since then. What slots and VMs in flight
-- into them block together is promised once, so it counts once, before and after: else a claim would
-- take room of others in its shadow. How statements are planned is its caller's business.
CREATE OR REPLACE FUNCTION capacity_count_claimed(
    p_hosts bigint[], p_memory_bytes bigint[], p_vcpus bigint[],
    p_before_memory_bytes bigint[], p_before_vcpus bigint[],
    p_committed_memory_bytes bigint[], p_committed_vcpus bigint[],
    p_in_flight_memory_bytes bigint[], p_in_flight_vcpus bigint[]
) RETURNS TABLE (host_id bigint, resource text, taken bigint, effective bigint, before bigint)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_room record;
    v_memory_bytes bigint;
    v_vcpus bigint;
BEGIN
    FOR place IN 1 .. cardinality(p_hosts) LOOP
        UPDATE capacity_hostcapacity AS room
           SET allocated_memory_bytes = p_memory_bytes[place],
               allocated_vcpus = p_vcpus[place],
               committed_memory_bytes = room.committed_memory_bytes
                   + p_committed_memory_bytes[place],
               committed_vcpus = room.committed_vcpus + p_committed_vcpus[place],
               in_flight_memory_bytes = room.in_flight_memory_bytes
                   + p_in_flight_memory_bytes[place],
               in_flight_vcpus = room.in_flight_vcpus + p_in_flight_vcpus[place]
         WHERE room.host_id = p_hosts[place]
        RETURNING room.effective_memory_bytes, room.effective_vcpus, room.in_flight_memory_bytes,
                  room.committed_memory_bytes + room.failover_memory_bytes
                      + room.in_flight_memory_bytes AS held_memory_bytes,
                  room.committed_vcpus + room.failover_vcpus + room.in_flight_vcpus AS held_vcpus
          INTO v_room;
        CONTINUE WHEN NOT FOUND;
        v_memory_bytes := p_memory_bytes[place] + v_room.held_memory_bytes;
        v_vcpus := p_vcpus[place] + v_room.held_vcpus;
        IF v_room.in_flight_memory_bytes > 0
           AND (v_memory_bytes > greatest(v_room.effective_memory_bytes,
                                          p_before_memory_bytes[place])
                OR v_vcpus > greatest(v_room.effective_vcpus, p_before_vcpus[place])) THEN
            SELECT v_memory_bytes - twice.memory_bytes, v_vcpus - twice.vcpus
              INTO v_memory_bytes, v_vcpus
              FROM capacity_blocked_twice(p_hosts[place]) AS twice;
        END IF;
        host_id := p_hosts[place];
        IF v_room.held_memory_bytes > 0 AND v_memory_bytes
               > greatest(v_room.effective_memory_bytes, p_before_memory_bytes[place]) THEN
            resource := 'memory_bytes';
            taken := v_memory_bytes;
            effective := v_room.effective_memory_bytes;
            before := p_before_memory_bytes[place];
            RETURN NEXT;
        END IF;
        IF v_room.held_vcpus > 0
           AND v_vcpus > greatest(v_room.effective_vcpus, p_before_vcpus[place]) THEN
            resource := 'vcpus';
            taken := v_vcpus;
            effective := v_room.effective_vcpus;
            before := p_before_vcpus[place];
            RETURN NEXT;
        END IF;
    END LOOP;
END
$$;
