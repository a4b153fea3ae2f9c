from django.db import migrations

ALLOCATIONS = "capacity_reservationallocation"
RESERVATIONS = "capacity_reservation"

# The five rules say that the list of a VM's own host, the hosts of its reservations and the hosts
# of everybody it shares one with names no host twice. Whoever changes memberships of a zone waits
# for the others who do (one advisory lock per zone, held to the end of the transaction), so that
# each sees what the others committed. 23P01 is exclusion_violation.
ENFORCE = f"""
CREATE FUNCTION failover_enforce_rules(touched bigint[]) RETURNS void LANGUAGE plpgsql
SET work_mem = '64MB' AS $$
DECLARE
    held_zone text;
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
    SELECT listed.vm_uuid, listed.host_id INTO broken
      FROM (
            WITH mine AS MATERIALIZED (
                SELECT vm.vm_uuid, vm.reservation_id, vm.vm_host_id, held.target_host_id
                  FROM (SELECT DISTINCT vm_uuid FROM {ALLOCATIONS}
                         WHERE reservation_id = ANY(touched)) AS chosen
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
END
$$
"""  # noqa: S608 - constants only

COMPLETE = f"""
CREATE FUNCTION failover_users_are_complete() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    touched bigint[];
BEGIN
    IF EXISTS (
        SELECT FROM fresh JOIN {RESERVATIONS} AS held ON held.id = fresh.reservation_id
         WHERE (held.kind = 'failover') <> (fresh.vm_host_id IS NOT NULL)
    ) THEN
        RAISE EXCEPTION 'users of failover reservations, and only they, say where they run'
            USING ERRCODE = 'check_violation', CONSTRAINT = 'failover_users_are_complete',
                  TABLE = '{ALLOCATIONS}';
    END IF;
    SELECT array_agg(DISTINCT reservation_id) INTO touched
      FROM fresh WHERE vm_host_id IS NOT NULL;
    PERFORM failover_enforce_rules(touched);
    RETURN NULL;
END
$$
"""  # noqa: S608 - constants only

CHANGED = f"""
CREATE FUNCTION failover_users_changed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (
        SELECT FROM {RESERVATIONS} AS held
         WHERE held.id = NEW.reservation_id
           AND (held.kind = 'failover') <> (NEW.vm_host_id IS NOT NULL)
    ) THEN
        RAISE EXCEPTION 'users of failover reservations, and only they, say where they run'
            USING ERRCODE = 'check_violation', CONSTRAINT = 'failover_users_are_complete',
                  TABLE = '{ALLOCATIONS}';
    END IF;
    IF NEW.vm_host_id IS NOT NULL THEN
        PERFORM failover_enforce_rules(ARRAY[NEW.reservation_id]);
    END IF;
    RETURN NULL;
END
$$
"""

MOVED = f"""
CREATE FUNCTION failover_reservation_moved() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.kind <> OLD.kind
       AND EXISTS (SELECT FROM {ALLOCATIONS} WHERE reservation_id = NEW.id) THEN
        RAISE EXCEPTION 'a reservation with users keeps its kind'
            USING ERRCODE = 'check_violation', CONSTRAINT = 'failover_reservation_keeps_kind',
                  TABLE = '{RESERVATIONS}';
    END IF;
    IF NEW.kind = 'failover' THEN
        PERFORM failover_enforce_rules(ARRAY[NEW.id]);
    END IF;
    RETURN NULL;
END
$$
"""

# A VM that was recorded on another host loses its reservations in the same transaction.
LEAVE = f"""
CREATE FUNCTION failover_vm_moved() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    WITH gone AS (
        DELETE FROM {ALLOCATIONS}
         WHERE vm_uuid = NEW.openstack_id AND vm_host_id <> NEW.host_id
        RETURNING reservation_id
    )
    UPDATE failover_failoverreservation AS held
       SET last_changed_at = now(), acknowledged_at = NULL, next_validation_at = now(),
           version = held.version + 1
      FROM gone
     WHERE held.reservation_id = gone.reservation_id;
    RETURN NULL;
END
$$
"""  # noqa: S608 - constants only

TRIGGERS = (
    (
        f"{ALLOCATIONS}_failover_insert",
        (
            f"AFTER INSERT ON {ALLOCATIONS} REFERENCING NEW TABLE AS fresh "
            "FOR EACH STATEMENT EXECUTE FUNCTION failover_users_are_complete()"
        ),
        ALLOCATIONS,
    ),
    (
        f"{ALLOCATIONS}_failover_update",
        (
            f"AFTER UPDATE OF reservation_id, vm_uuid, vm_host_id ON {ALLOCATIONS} FOR EACH ROW "
            "WHEN ((OLD.reservation_id, OLD.vm_uuid, OLD.vm_host_id) IS DISTINCT FROM "
            "(NEW.reservation_id, NEW.vm_uuid, NEW.vm_host_id)) "
            "EXECUTE FUNCTION failover_users_changed()"
        ),
        ALLOCATIONS,
    ),
    (
        f"{RESERVATIONS}_failover_update",
        (
            f"AFTER UPDATE OF kind, zone, target_host_id ON {RESERVATIONS} FOR EACH ROW "
            "WHEN ((OLD.kind = 'failover' OR NEW.kind = 'failover') AND "
            "(OLD.kind, OLD.zone, OLD.target_host_id) IS DISTINCT FROM "
            "(NEW.kind, NEW.zone, NEW.target_host_id)) "
            "EXECUTE FUNCTION failover_reservation_moved()"
        ),
        RESERVATIONS,
    ),
    (
        "hosts_instance_failover_move",
        (
            "AFTER UPDATE OF host_id ON hosts_instance FOR EACH ROW "
            "WHEN (NEW.host_id IS NOT NULL AND OLD.host_id IS NOT NULL "
            "AND OLD.host_id <> NEW.host_id) EXECUTE FUNCTION failover_vm_moved()"
        ),
        "hosts_instance",
    ),
)


class Migration(migrations.Migration):
    dependencies = [
        ("failover", "0005_drills_and_evacuations"),
        ("capacity", "0007_failover_users"),
        ("hosts", "0004_scheduling_facts"),
    ]

    operations = [
        migrations.RunSQL(ENFORCE, "DROP FUNCTION failover_enforce_rules(bigint[])"),
        migrations.RunSQL(COMPLETE, "DROP FUNCTION failover_users_are_complete()"),
        migrations.RunSQL(CHANGED, "DROP FUNCTION failover_users_changed()"),
        migrations.RunSQL(MOVED, "DROP FUNCTION failover_reservation_moved()"),
        migrations.RunSQL(LEAVE, "DROP FUNCTION failover_vm_moved()"),
        *(
            migrations.RunSQL(f"CREATE TRIGGER {name} {what}", f"DROP TRIGGER {name} ON {table}")
            for name, what, table in TRIGGERS
        ),
    ]
