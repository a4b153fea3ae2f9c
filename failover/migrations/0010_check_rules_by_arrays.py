from django.db import migrations

ALLOCATIONS = "capacity_reservationallocation"
RESERVATIONS = "capacity_reservation"

HEAD = f"""
CREATE OR REPLACE FUNCTION failover_enforce_rules(touched bigint[]) RETURNS void LANGUAGE plpgsql
SET work_mem = '64MB' SET enable_nestloop = on AS $$
DECLARE
    held_zone text;
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
        SELECT DISTINCT zone FROM {RESERVATIONS} WHERE id = ANY(touched) ORDER BY zone
    LOOP
        PERFORM pg_advisory_xact_lock(hashtextextended('failover.rules:' || held_zone, 0));
    END LOOP;
"""  # noqa: S608 - constants only

# What the list of each chosen VM has: own host, hosts of its reservations, hosts of sharers.
LISTED = f"""
    SELECT listed.vm_uuid, listed.host_id INTO broken
      FROM (
            WITH mine AS MATERIALIZED (
                SELECT vm.vm_uuid, vm.reservation_id, vm.vm_host_id, held.target_host_id
                  FROM ({{chosen}}) AS chosen
                  JOIN {ALLOCATIONS} AS vm ON vm.vm_uuid = chosen.vm_uuid
                  JOIN {RESERVATIONS} AS held
                    ON held.id = vm.reservation_id AND held.kind = 'failover'
            )
            SELECT DISTINCT vm_uuid, vm_host_id AS host_id FROM mine
             UNION ALL
            SELECT vm_uuid, target_host_id FROM mine
             UNION ALL
            SELECT mine.vm_uuid, other.vm_host_id
              FROM mine JOIN {ALLOCATIONS} AS other
                ON other.reservation_id = mine.reservation_id AND other.vm_uuid <> mine.vm_uuid
           ) AS listed
     GROUP BY listed.vm_uuid, listed.host_id
    HAVING count(*) > 1
     LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'failover rules: host % is listed twice for VM %',
            broken.host_id, broken.vm_uuid
            USING ERRCODE = 'exclusion_violation', CONSTRAINT = 'failover_rules',
                  TABLE = '{ALLOCATIONS}';
    END IF;
"""  # noqa: S608 - constants only

# A reservation's hosts are its own and those of its users. No list names a host twice if no
# reservation does, and if any two reservations of a VM have nothing in common but the VM's host.
# So a list is looked at as a few arrays and not element by element; only that of a VM that was
# found to break the rules is, to say which host it is about. Rows are found by index first; joining
# what was found needs hashes, which the planner would not choose, not knowing how much it is.
SUSPECT = f"""
    SELECT array_agg(vm.vm_uuid), array_agg(vm.reservation_id), array_agg(vm.vm_host_id)
      INTO uuids, ids, homes
      FROM (SELECT DISTINCT vm_uuid FROM {ALLOCATIONS}
             WHERE reservation_id = ANY(touched)) AS chosen
      JOIN {ALLOCATIONS} AS vm ON vm.vm_uuid = chosen.vm_uuid
     WHERE vm.vm_host_id IS NOT NULL;
    near := ARRAY(SELECT DISTINCT unnest(ids));
    SELECT array_agg(listed.id), array_agg(listed.host_id) INTO held_ids, held_hosts
      FROM (
            SELECT id, target_host_id AS host_id FROM {RESERVATIONS}
             WHERE id = ANY(near) AND target_host_id IS NOT NULL
             UNION ALL
            SELECT reservation_id, vm_host_id FROM {ALLOCATIONS}
             WHERE reservation_id = ANY(near) AND vm_host_id IS NOT NULL
           ) AS listed;
    PERFORM set_config('enable_nestloop', 'off', true);
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
"""  # noqa: S608 - constants only

BY_ARRAYS = HEAD + SUSPECT + LISTED.format(chosen="SELECT suspect AS vm_uuid") + "END $$"
ALL_CHOSEN = f"SELECT DISTINCT vm_uuid FROM {ALLOCATIONS} WHERE reservation_id = ANY(touched)"  # noqa: S608
BY_ELEMENTS = HEAD + LISTED.format(chosen=ALL_CHOSEN) + "END $$"


class Migration(migrations.Migration):
    dependencies = [("failover", "0009_index_of_user_hosts")]

    operations = [migrations.RunSQL(BY_ARRAYS, BY_ELEMENTS)]
