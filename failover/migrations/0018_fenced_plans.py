from django.db import migrations

ALLOCATIONS = "capacity_reservationallocation"
SLOTS = "failover_failoverreservation"
NOTHING = migrations.RunSQL.noop

# Of a table that the server last looked at when it was empty it expects one row, whatever is asked.
# To read all of one index then seems as good as to look something up in another. A bitmap is made
# of what was looked up; a part that stands alone (OFFSET 0) is looked up by its own condition.
SCANS = ("enable_indexscan", "enable_indexonlyscan")
FUNCTIONS = (
    "failover_enforce_rules(bigint[])",
    "failover_users_are_complete()",
    "failover_users_changed()",
    "failover_reservation_moved()",
    "failover_host_changed()",
)
STEADY = """
    SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_indexscan = off
    SET enable_indexonlyscan = off SET enable_hashjoin = off SET enable_mergejoin = off
"""

RELEASE = f"""
    WITH gone AS (
        DELETE FROM {ALLOCATIONS} WHERE id = ANY(stale) RETURNING reservation_id
    )
    UPDATE {SLOTS} AS held
       SET last_changed_at = now(), acknowledged_at = NULL, next_validation_at = now(),
           version = held.version + 1
      FROM gone
     WHERE held.reservation_id = gone.reservation_id;
"""  # noqa: S608 - constants only

MOVED = f"""
CREATE OR REPLACE FUNCTION failover_vm_moved() RETURNS trigger LANGUAGE plpgsql {STEADY} AS $$
DECLARE
    held_ids bigint[];
    stale bigint[];
BEGIN
    held_ids := ARRAY(
        SELECT one.reservation_id
          FROM (SELECT reservation_id, vm_host_id FROM {ALLOCATIONS}
                 WHERE vm_uuid = NEW.openstack_id OFFSET 0) AS one
         WHERE one.vm_host_id <> NEW.host_id
    );
    IF held_ids = '{{}}' THEN
        RETURN NULL;
    END IF;
    PERFORM FROM {SLOTS}
      WHERE reservation_id = ANY(held_ids) ORDER BY reservation_id FOR NO KEY UPDATE;
    stale := ARRAY(
        SELECT one.id
          FROM (SELECT id, vm_host_id FROM {ALLOCATIONS}
                 WHERE vm_uuid = NEW.openstack_id OFFSET 0) AS one
         WHERE one.vm_host_id <> NEW.host_id
    );
    {RELEASE}
    RETURN NULL;
END
$$
"""  # noqa: S608 - constants only

RETURNED = f"""
CREATE OR REPLACE FUNCTION failover_vms_returned() RETURNS trigger LANGUAGE plpgsql {STEADY} AS $$
DECLARE
    stale bigint[];
BEGIN
    stale := ARRAY(
        SELECT one.id
          FROM fresh
         CROSS JOIN LATERAL (SELECT id, vm_host_id FROM {ALLOCATIONS}
                              WHERE vm_uuid = fresh.openstack_id OFFSET 0) AS one
         WHERE one.vm_host_id <> fresh.host_id
    );
    IF stale = '{{}}' THEN
        RETURN NULL;
    END IF;
    PERFORM FROM {SLOTS}
      WHERE reservation_id IN (SELECT reservation_id FROM {ALLOCATIONS} WHERE id = ANY(stale))
      ORDER BY reservation_id FOR NO KEY UPDATE;
    {RELEASE}
    RETURN NULL;
END
$$
"""  # noqa: S608 - constants only


class Migration(migrations.Migration):
    dependencies = [("failover", "0017_vms_that_come_back")]

    operations = [
        *(
            migrations.RunSQL(
                f"ALTER FUNCTION {function} SET {scan} = off",
                f"ALTER FUNCTION {function} RESET {scan}",
            )
            for function in FUNCTIONS
            for scan in SCANS
        ),
        migrations.RunSQL(MOVED, NOTHING),
        migrations.RunSQL(RETURNED, NOTHING),
    ]
