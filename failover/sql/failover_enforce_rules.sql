-- The five rules say that the list of a VM's own host, the hosts of its reservations and the hosts
-- of everybody it shares one with names no host twice. Whoever changes memberships of a zone waits
-- for the others who do (one advisory lock per zone, held to the end of the transaction), so that
-- each sees what the others committed. 23P01 is exclusion_violation.
-- A reservation's hosts are its own and those of its users. No list names a host twice if no
-- reservation does, and if any two reservations of a VM have nothing in common but the VM's host.
-- So a list is looked at as a few arrays and not element by element; only that of a VM that was
-- found to break the rules is, to say which host it is about. Each statement reads one table, by
-- index; joining what was found needs hashes, which the planner would not choose, not knowing how
-- much it is.
-- Of a table that the server last looked at when it was empty it expects one row, whatever is asked.
-- To read all of one index then seems as good as to look something up in another. A bitmap is made
-- of what was looked up; a part that stands alone (OFFSET 0) is looked up by its own condition.
CREATE OR REPLACE FUNCTION failover_enforce_rules(touched bigint[]) RETURNS void LANGUAGE plpgsql
SET work_mem = '64MB' SET enable_nestloop = on SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off SET enable_indexscan = off SET enable_indexonlyscan = off AS $$
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
END $$;
