"""Plans of the rules that stay good while the tables grow (as placement 0007).

A plan that a session keeps was made for the tables as they were. Made when they were nearly empty,
it reads them from end to end until the server looks at them again, which is up to a minute later.
"""

from django.db import migrations

ALLOCATIONS = "capacity_reservationallocation"
RESERVATIONS = "capacity_reservation"
PLANS = "SET plan_cache_mode = force_generic_plan SET enable_seqscan = off"

HEAD = f"""
CREATE OR REPLACE FUNCTION failover_enforce_rules(touched bigint[]) RETURNS void LANGUAGE plpgsql
SET work_mem = '64MB' SET enable_nestloop = on {PLANS} AS $$
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
        SELECT DISTINCT zone FROM {RESERVATIONS} WHERE id = ANY(touched) ORDER BY zone
    LOOP
        PERFORM pg_advisory_xact_lock(hashtextextended('failover.rules:' || held_zone, 0));
    END LOOP;
"""  # noqa: S608 - constants only

# As in migration 0010, but each statement reads one table, by index: which is joined to which, and
# in which order, is not left to what the planner believes of tables that are just being filled.
SUSPECT = f"""
    chosen := ARRAY(SELECT DISTINCT vm_uuid FROM {ALLOCATIONS}
                     WHERE reservation_id = ANY(touched));
    SELECT array_agg(vm.vm_uuid), array_agg(vm.reservation_id), array_agg(vm.vm_host_id)
      INTO uuids, ids, homes
      FROM {ALLOCATIONS} AS vm
     WHERE vm.vm_uuid = ANY(chosen) AND vm.vm_host_id IS NOT NULL;
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

LISTED = f"""
    SELECT listed.vm_uuid, listed.host_id INTO broken
      FROM (
            WITH mine AS MATERIALIZED (
                SELECT vm.vm_uuid, vm.reservation_id, vm.vm_host_id, held.target_host_id
                  FROM {ALLOCATIONS} AS vm
                  JOIN {RESERVATIONS} AS held
                    ON held.id = vm.reservation_id AND held.kind = 'failover'
                 WHERE vm.vm_uuid = suspect
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

STEADY = (
    "failover_users_are_complete",
    "failover_users_changed",
    "failover_reservation_moved",
    "failover_vm_moved",
    "failover_host_changed",
)


class Migration(migrations.Migration):
    dependencies = [("failover", "0011_lock_slots_before_users")]

    operations = [
        # What it was is not worth keeping: the older text is of the same meaning.
        migrations.RunSQL(HEAD + SUSPECT + LISTED + "END $$", migrations.RunSQL.noop),
        *(
            migrations.RunSQL(
                f"ALTER FUNCTION {name}() {PLANS}",
                f"ALTER FUNCTION {name}() RESET plan_cache_mode RESET enable_seqscan",
            )
            for name in STEADY
        ),
    ]
