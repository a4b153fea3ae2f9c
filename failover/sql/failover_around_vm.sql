-- All that planning one VM reads (spec failover, 17.8): one document, none for a VM that the list puts
-- on no host. Lists hold the columns that failover/selectors/zone.py names. Each statement reads one
-- table by a key, or looks rows of others up one by one, so that its plan is the same whatever is
-- known of tables that are just being filled.
CREATE OR REPLACE FUNCTION failover_around_vm(
    p_uuid text, p_trusts boolean, p_now timestamptz, p_latest timestamptz,
    p_up text, p_enabled text, p_harmless text[]
) RETURNS jsonb LANGUAGE plpgsql STABLE
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_indexscan = off
SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $$
DECLARE
    own record;
    own_zone text;
    own_domain text;
    slot_ids bigint[];
    reporting bigint[];
    near bigint[];
    own_group text;
BEGIN
    SELECT v.id, v.openstack_id, v.host_id, v.memory_bytes, v.vcpus, v.flavor_name, v.project_id,
           v.flavor_extra_specs, v.status, v.nova_updated_at
      INTO own FROM hosts_instance AS v WHERE v.openstack_id = p_uuid;
    IF own.host_id IS NULL THEN
        RETURN NULL;
    END IF;
    own_zone := (SELECT zone FROM hosts_host WHERE id = own.host_id);
    own_domain := (SELECT name FROM hosts_domain WHERE openstack_id = (
                   SELECT domain_id FROM hosts_project WHERE openstack_id = own.project_id));
    slot_ids := ARRAY(SELECT one.reservation_id
                        FROM (SELECT reservation_id, vm_host_id
                                FROM capacity_reservationallocation
                               WHERE vm_uuid = p_uuid OFFSET 0) AS one
                       WHERE one.vm_host_id IS NOT NULL);
    reporting := ARRAY[own.host_id];
    IF p_trusts THEN
        reporting := reporting || ARRAY(
            SELECT one.id
              FROM (SELECT id, reported_instances FROM hosts_host
                     WHERE zone = own_zone OFFSET 0) AS one
             WHERE one.reported_instances
                   @> jsonb_build_array(jsonb_build_object('id', p_uuid)));
    END IF;
    near := reporting
            || ARRAY(SELECT target_host_id FROM capacity_reservation WHERE id = ANY(slot_ids))
            || ARRAY(SELECT vm_host_id FROM capacity_reservationallocation
                      WHERE reservation_id = ANY(slot_ids));
    slot_ids := ARRAY(SELECT one.id
                        FROM (SELECT id, kind FROM capacity_reservation
                               WHERE id = ANY(slot_ids) OFFSET 0) AS one
                       WHERE one.kind = 'failover');
    own_group := (SELECT one.openstack_id
                    FROM (SELECT id, openstack_id, policy FROM hosts_servergroup
                           WHERE members @> ARRAY[p_uuid]::varchar[] OFFSET 0) AS one
                   WHERE one.policy = 'anti-affinity' ORDER BY one.id DESC LIMIT 1);
    RETURN jsonb_build_object(
        'zone', own_zone,
        'vm', jsonb_build_array(
            own.id, own.openstack_id, own.host_id, own.memory_bytes, own.vcpus, own.flavor_name,
            own.project_id, jsonb_hash_extended(own.flavor_extra_specs, 0), own.status,
            own.nova_updated_at),
        'specs', own.flavor_extra_specs,
        'domain', own_domain,
        'group', own_group,
        'is_halted', coalesce((SELECT known.brake_reason <> '' FROM failover_failoverzone AS known
                                WHERE known.zone = own_zone), false),
        'is_known_short', EXISTS (SELECT FROM failover_failoverdecision WHERE vm_uuid = p_uuid),
        'barred', coalesce((SELECT jsonb_agg(one.host_id)
                              FROM (SELECT host_id, until FROM failover_failovercooldown
                                     WHERE vm_uuid = p_uuid OFFSET 0) AS one
                             WHERE one.until > p_now AND one.until <= p_latest), '[]'),
        'reports', coalesce((
            SELECT jsonb_agg(jsonb_build_array(one.name, one.reported_instances) ORDER BY one.name)
              FROM (SELECT name, reported_instances FROM hosts_host
                     WHERE id = ANY(reporting) OFFSET 0) AS one
             WHERE one.reported_instances IS NOT NULL), '[]'),
        'hosts', coalesce((
            SELECT jsonb_agg(jsonb_build_array(
                       host.id, host.name, host.building_block,
                       host.state = p_up AND NOT host.is_lost AND host.status = p_enabled
                           AND host.maintenance = ANY(p_harmless)
                           AND coalesce(host.conditions->>'Ready', 'True') = 'True',
                       room.effective_memory_bytes, room.effective_vcpus,
                       room.allocated_memory_bytes, room.allocated_vcpus,
                       room.committed_memory_bytes + room.in_flight_memory_bytes,
                       room.committed_vcpus + room.in_flight_vcpus,
                       room.failover_memory_bytes, room.failover_vcpus, host.hypervisor_type,
                       NOT host.high_availability
                           OR host.conditions->>'HaEnabled' IS NOT DISTINCT FROM 'False')
                   ORDER BY host.id)
              FROM hosts_host AS host
             CROSS JOIN LATERAL (SELECT * FROM capacity_hostcapacity
                                  WHERE host_id = host.id OFFSET 0) AS room
             WHERE host.id = ANY(near)), '[]')
    ) || failover_around_slots(slot_ids, false);
END
$$;
