"""Steady plans for what is read and locked when one VM is planned (spec failover, 17.8).

Told which VM, the server made a plan for every single statement, which took five times as long as
carrying it out. Each statement here reads one table by a key, or looks rows of others up one by
one, so that its plan is the same whatever is known of tables that are just being filled.
"""

from django.db import migrations

# Rows are found by bitmaps, which only a key can give: an index that is in the order of the answer
# is never read from end to end.
PLANS = """SET plan_cache_mode = force_generic_plan SET enable_seqscan = off
SET enable_indexscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off"""

# One document, none for a VM that the list puts on no host. Lists hold the columns that
# failover/selectors/zone.py names.
AROUND_VM = """
CREATE FUNCTION failover_around_vm(
    p_uuid text, p_trusts boolean, p_now timestamptz, p_latest timestamptz,
    p_up text, p_enabled text, p_harmless text[]
) RETURNS jsonb LANGUAGE plpgsql STABLE PLANS AS $$
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
        'slots', coalesce((
            SELECT jsonb_agg(jsonb_build_array(
                       held.id, coalesce(known.name, held.uuid::text), held.target_host_id,
                       held.memory_bytes, held.vcpus, held.is_ready IS TRUE,
                       coalesce(known.state, 'active')) ORDER BY held.id)
              FROM capacity_reservation AS held
              LEFT JOIN LATERAL (SELECT name, state FROM failover_failoverreservation
                                  WHERE reservation_id = held.id OFFSET 0) AS known ON true
             WHERE held.id = ANY(slot_ids)), '[]'),
        'members', coalesce((
            SELECT jsonb_agg(jsonb_build_array(
                       vm.id, vm.reservation_id, vm.vm_uuid, vm.vm_host_id,
                       vm.validated_at IS NOT NULL, vm.memory_bytes, vm.vcpus) ORDER BY vm.id)
              FROM capacity_reservationallocation AS vm
             WHERE vm.reservation_id = ANY(slot_ids)), '[]'),
        'reports', coalesce((
            SELECT jsonb_agg(jsonb_build_array(one.name, one.reported_instances) ORDER BY one.name)
              FROM (SELECT name, reported_instances FROM hosts_host
                     WHERE id = ANY(reporting) OFFSET 0) AS one
             WHERE one.reported_instances IS NOT NULL), '[]'),
        'hosts', coalesce((
            SELECT jsonb_agg(jsonb_build_array(
                       host.id, host.name, host.building_block,
                       host.state = p_up AND host.status = p_enabled
                           AND host.maintenance = ANY(p_harmless)
                           AND coalesce(host.conditions->>'Ready', 'True') = 'True',
                       room.effective_memory_bytes, room.effective_vcpus,
                       room.allocated_memory_bytes, room.allocated_vcpus,
                       room.committed_memory_bytes + room.in_flight_memory_bytes,
                       room.committed_vcpus + room.in_flight_vcpus,
                       room.failover_memory_bytes, room.failover_vcpus, host.hypervisor_type,
                       host.conditions->>'HaEnabled' IS NOT DISTINCT FROM 'False')
                   ORDER BY host.id)
              FROM hosts_host AS host
             CROSS JOIN LATERAL (SELECT * FROM capacity_hostcapacity
                                  WHERE host_id = host.id OFFSET 0) AS room
             WHERE host.id = ANY(near)), '[]')
    );
END
$$
"""

OFFERS = """
CREATE FUNCTION failover_offers(p_keys bigint[]) RETURNS TABLE (
    id bigint, name text, memory_bytes bigint, vcpus bigint, users bigint
) LANGUAGE plpgsql STABLE PLANS AS $$
BEGIN
    RETURN QUERY
    SELECT held.id, known.name::text, held.memory_bytes, held.vcpus,
           (SELECT count(*) FROM capacity_reservationallocation AS vm
             WHERE vm.reservation_id = held.id)
      FROM capacity_reservation AS held
     CROSS JOIN LATERAL (SELECT one.name, one.state FROM failover_failoverreservation AS one
                          WHERE one.reservation_id = held.id OFFSET 0) AS known
     WHERE held.id = ANY(p_keys) AND held.is_ready AND known.state = 'active';
END
$$
"""

# A reservation that another is changing now is passed over, see ``writing.LOCK_SLOTS``. The kind is
# asked for in a way that no index of it answers.
LOCK_SLOTS = """
CREATE FUNCTION failover_lock_slots(p_keys bigint[]) RETURNS TABLE (
    id bigint, memory_bytes bigint, vcpus bigint
) LANGUAGE plpgsql PLANS AS $$
BEGIN
    RETURN QUERY
    SELECT held.id, held.memory_bytes, held.vcpus
      FROM capacity_reservation AS held
      JOIN failover_failoverreservation AS known ON known.reservation_id = held.id
     WHERE held.id = ANY(p_keys) AND known.reservation_id = ANY(p_keys)
       AND coalesce(held.kind, '') = 'failover' AND held.is_ready AND known.state = 'active'
     ORDER BY held.id FOR NO KEY UPDATE OF held, known SKIP LOCKED;
END
$$
"""

# A VM that another is changing now is passed over: waiting for it could end in a deadlock. How many
# reservations a VM has is counted after it was locked.
LOCK_VMS = """
CREATE FUNCTION failover_lock_vms(p_uuids text[]) RETURNS TABLE (
    vm_uuid text, host_id bigint, slots bigint
) LANGUAGE plpgsql PLANS AS $$
DECLARE
    found_uuids text[];
    found_hosts bigint[];
BEGIN
    SELECT array_agg(one.openstack_id), array_agg(one.host_id) INTO found_uuids, found_hosts
      FROM (SELECT vm.openstack_id, vm.host_id FROM hosts_instance AS vm
             WHERE vm.openstack_id = ANY(p_uuids) ORDER BY vm.id FOR SHARE SKIP LOCKED) AS one;
    RETURN QUERY
    SELECT one.vm_uuid, one.host_id,
           (SELECT count(listed.vm_host_id) FROM capacity_reservationallocation AS listed
             WHERE listed.vm_uuid = one.vm_uuid)
      FROM unnest(found_uuids, found_hosts) AS one(vm_uuid, host_id);
END
$$
"""

# The rules as migration 0012 made them: what is read, and how it is judged.
HEAD = """
CREATE OR REPLACE FUNCTION failover_enforce_rules(touched bigint[]) RETURNS void LANGUAGE plpgsql
SET work_mem = '64MB' SET enable_nestloop = on SET plan_cache_mode = force_generic_plan SET enable_seqscan = off AS $$
DECLARE
    held_zone text;
    chosen text[];
    uuids text[];
    ids bigint[];
    homes bigint[];
    near bigint[];
    held_ids bigint[];
    held_hosts bigint[];
    suspect text;
    broken record;
BEGIN
    IF touched IS NULL THEN
        RETURN;
    END IF;
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION 'users of failover reservations are changed at read committed only'
            USING ERRCODE = 'invalid_transaction_state';
    END IF;
    FOR held_zone IN
        SELECT DISTINCT zone FROM capacity_reservation WHERE id = ANY(touched) ORDER BY zone
    LOOP
        PERFORM pg_advisory_xact_lock(hashtextextended('failover.rules:' || held_zone, 0));
    END LOOP;
"""
READ_BEFORE = """
    chosen := ARRAY(SELECT DISTINCT vm_uuid FROM capacity_reservationallocation
                     WHERE reservation_id = ANY(touched));
    SELECT array_agg(vm.vm_uuid), array_agg(vm.reservation_id), array_agg(vm.vm_host_id)
      INTO uuids, ids, homes
      FROM capacity_reservationallocation AS vm
     WHERE vm.vm_uuid = ANY(chosen) AND vm.vm_host_id IS NOT NULL;
    near := ARRAY(SELECT DISTINCT unnest(ids));
    SELECT array_agg(listed.id), array_agg(listed.host_id) INTO held_ids, held_hosts
      FROM (
            SELECT id, target_host_id AS host_id FROM capacity_reservation
             WHERE id = ANY(near) AND target_host_id IS NOT NULL
             UNION ALL
            SELECT reservation_id, vm_host_id FROM capacity_reservationallocation
             WHERE reservation_id = ANY(near) AND vm_host_id IS NOT NULL
           ) AS listed;
"""
JUDGED = """    PERFORM set_config('enable_nestloop', 'off', true);
    WITH mine AS MATERIALIZED (
        SELECT * FROM unnest(uuids, ids, homes) AS mine(vm_uuid, id, home)
    ), held AS MATERIALIZED (
        SELECT id, array_agg(host_id) AS hosts, count(*) > count(DISTINCT host_id) AS is_broken
          FROM unnest(held_ids, held_hosts) AS held(id, host_id) GROUP BY id
    )
    SELECT found.vm_uuid INTO suspect
      FROM (
            SELECT mine.vm_uuid FROM mine JOIN held ON held.id = mine.id WHERE held.is_broken
             UNION ALL
            SELECT one.vm_uuid
              FROM mine AS one
              JOIN mine AS other ON other.vm_uuid = one.vm_uuid AND other.id > one.id
              JOIN held AS one_held ON one_held.id = one.id
              JOIN held AS other_held ON other_held.id = other.id
             WHERE array_remove(one_held.hosts, CASE WHEN one.home = other.home THEN one.home END)
                && array_remove(other_held.hosts, CASE WHEN one.home = other.home THEN one.home END)
           ) AS found
     LIMIT 1;
    PERFORM set_config('enable_nestloop', 'on', true);
    IF suspect IS NULL THEN
        RETURN;
    END IF;

    SELECT listed.vm_uuid, listed.host_id INTO broken
      FROM (
            WITH mine AS MATERIALIZED (
                SELECT vm.vm_uuid, vm.reservation_id, vm.vm_host_id, held.target_host_id
                  FROM capacity_reservationallocation AS vm
                  JOIN capacity_reservation AS held
                    ON held.id = vm.reservation_id AND held.kind = 'failover'
                 WHERE vm.vm_uuid = suspect
            )
            SELECT DISTINCT vm_uuid, vm_host_id AS host_id FROM mine
             UNION ALL
            SELECT vm_uuid, target_host_id FROM mine
             UNION ALL
            SELECT mine.vm_uuid, other.vm_host_id
              FROM mine JOIN capacity_reservationallocation AS other
                ON other.reservation_id = mine.reservation_id AND other.vm_uuid <> mine.vm_uuid
           ) AS listed
     GROUP BY listed.vm_uuid, listed.host_id
    HAVING count(*) > 1
     LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'failover rules: host % is listed twice for VM %',
            broken.host_id, broken.vm_uuid
            USING ERRCODE = 'exclusion_violation', CONSTRAINT = 'failover_rules',
                  TABLE = 'capacity_reservationallocation';
    END IF;
END $$"""

# In what was read before, the condition that a column is filled made the server read an index of
# nothing but such rows from end to end, while it believed the table to be empty.
READ = """
    chosen := ARRAY(SELECT DISTINCT vm_uuid FROM capacity_reservationallocation
                     WHERE reservation_id = ANY(touched));
    SELECT array_agg(vm.vm_uuid), array_agg(vm.reservation_id), array_agg(vm.vm_host_id)
      INTO uuids, ids, homes
      FROM (SELECT vm_uuid, reservation_id, vm_host_id FROM capacity_reservationallocation
             WHERE vm_uuid = ANY(chosen) OFFSET 0) AS vm
     WHERE vm.vm_host_id IS NOT NULL;
    near := ARRAY(SELECT DISTINCT unnest(ids));
    SELECT array_agg(listed.id), array_agg(listed.host_id) INTO held_ids, held_hosts
      FROM (
            SELECT * FROM (SELECT id, target_host_id AS host_id FROM capacity_reservation
                            WHERE id = ANY(near) OFFSET 0) AS held
             UNION ALL
            SELECT * FROM (SELECT reservation_id, vm_host_id FROM capacity_reservationallocation
                            WHERE reservation_id = ANY(near) OFFSET 0) AS vm
           ) AS listed
     WHERE listed.host_id IS NOT NULL;
"""

BEFORE = HEAD + READ_BEFORE + JUDGED
RULES = HEAD + READ + JUDGED

FUNCTIONS = {
    "failover_around_vm(text, boolean, timestamptz, timestamptz, text, text, text[])": AROUND_VM,
    "failover_offers(bigint[])": OFFERS,
    "failover_lock_slots(bigint[])": LOCK_SLOTS,
    "failover_lock_vms(text[])": LOCK_VMS,
}


class Migration(migrations.Migration):
    dependencies = [
        ("failover", "0013_times_of_the_database"),
        ("hosts", "0010_members_of_server_groups"),
    ]

    operations = [
        migrations.RunSQL(RULES, BEFORE),
        *(
            migrations.RunSQL(text.replace("PLANS", PLANS), f"DROP FUNCTION {name}")
            for name, text in FUNCTIONS.items()
        ),
    ]
