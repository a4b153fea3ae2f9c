-- Settles a write of this transaction about one VM on one provider, if the VM is new and the provider a
-- host's root, by what the request says of it: most claims are like that. Returns whether it did;
-- else placement_settled has all of it to do.
CREATE OR REPLACE FUNCTION placement_settle_new(
    p_uuid uuid, p_project text, p_provider uuid, p_classes text[], p_amounts bigint[],
    p_enforces boolean
) RETURNS boolean LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET jit = off
SET enable_hashjoin = off SET enable_mergejoin = off
SET enable_memoize = off SET enable_material = off AS $$
DECLARE
    v_host bigint;
    v_root bigint;
    v_memory_bytes bigint := 0;
    v_vcpus bigint := 0;
    v_settled record;
    v_taken record;
    v_eaten record;
BEGIN
    -- Who was there before has a higher generation. Rooms of other hosts, where a VM is in flight or
    -- in a slot, are locked in the order of all: not after this one.
    SELECT host.id, root.id INTO v_host, v_root
      FROM placement_consumer AS consumer, placement_provider AS root
      JOIN LATERAL (
           SELECT host.id FROM hosts_host AS host
            WHERE hosts_provider_uuid(host.provider_uuid, host.openstack_id) = root.uuid
           OFFSET 0) AS host ON true
     WHERE consumer.uuid = p_uuid AND consumer.generation = 1
       AND root.uuid = p_provider AND root.origin = 'host'
       AND NOT EXISTS (SELECT FROM capacity_reservationallocation AS vm
                        WHERE vm.vm_uuid = p_uuid::text)
       AND NOT EXISTS (SELECT FROM capacity_reservation AS flight
                        WHERE flight.kind = 'in_flight' AND flight.vm_uuid = p_uuid::text);
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    FOR place IN 1 .. cardinality(p_classes) LOOP
        IF p_classes[place] = 'MEMORY_MB' THEN
            v_memory_bytes := v_memory_bytes + p_amounts[place] * 1048576;
        ELSIF p_classes[place] IN ('VCPU', 'PCPU') THEN
            v_vcpus := v_vcpus + p_amounts[place];
        END IF;
    END LOOP;
    v_settled := capacity_settle_new(p_uuid::text, p_project, v_host, v_memory_bytes, v_vcpus,
                                     jsonb_object(p_classes, p_amounts::text[]));
    IF NOT v_settled.is_settled THEN
        RETURN false;
    END IF;
    -- Where the room was what consumers hold, it is now: VMs that are in slots without a claim, which
    -- take one look each, are searched for where there were any.
    SELECT claimed.memory_bytes, claimed.vcpus INTO v_taken
      FROM placement_claimed_of(v_root) AS claimed;
    IF (v_settled.allocated_memory_bytes + v_memory_bytes, v_settled.allocated_vcpus + v_vcpus)
       IS DISTINCT FROM (v_taken.memory_bytes, v_taken.vcpus) THEN
        SELECT coalesce(sum(taken.memory_bytes), 0)::bigint AS memory_bytes,
               coalesce(sum(taken.vcpus), 0)::bigint AS vcpus
          INTO v_taken FROM placement_allocated(ARRAY[v_host]) AS taken;
    END IF;
    SELECT eaten.* INTO v_eaten
      FROM capacity_count_claimed(
               ARRAY[v_host], ARRAY[v_taken.memory_bytes], ARRAY[v_taken.vcpus],
               ARRAY[v_settled.memory_bytes], ARRAY[v_settled.vcpus],
               ARRAY[v_settled.committed_memory_bytes], ARRAY[v_settled.committed_vcpus],
               ARRAY[0::bigint], ARRAY[0::bigint]) AS eaten
     LIMIT 1;
    IF FOUND AND p_enforces THEN
        RAISE EXCEPTION USING ERRCODE = 'HRA07', MESSAGE = 'room is held for others',
            DETAIL = json_build_array(v_eaten.host_id, v_eaten.resource, v_eaten.taken,
                                      v_eaten.effective, v_eaten.before);
    END IF;
    RETURN true;
END
$$;
