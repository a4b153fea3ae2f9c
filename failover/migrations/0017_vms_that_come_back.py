from django.db import migrations

ALLOCATIONS = "capacity_reservationallocation"
SLOTS = "failover_failoverreservation"

# A VM that was forgotten and is listed again, on another host, loses the reservations that it had
# there, as one does that moves.
RETURNED = f"""
CREATE FUNCTION failover_vms_returned() RETURNS trigger LANGUAGE plpgsql
    SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
DECLARE
    stale bigint[];
BEGIN
    stale := ARRAY(
        SELECT one.id FROM fresh
          JOIN {ALLOCATIONS} AS one ON one.vm_uuid = fresh.openstack_id
         WHERE one.vm_host_id <> fresh.host_id
    );
    IF stale = '{{}}' THEN
        RETURN NULL;
    END IF;
    PERFORM FROM {SLOTS}
      WHERE reservation_id IN (SELECT reservation_id FROM {ALLOCATIONS} WHERE id = ANY(stale))
      ORDER BY reservation_id FOR NO KEY UPDATE;
    WITH gone AS (
        DELETE FROM {ALLOCATIONS} WHERE id = ANY(stale) RETURNING reservation_id
    )
    UPDATE {SLOTS} AS held
       SET last_changed_at = now(), acknowledged_at = NULL, next_validation_at = now(),
           version = held.version + 1
      FROM gone
     WHERE held.reservation_id = gone.reservation_id;
    RETURN NULL;
END
$$
"""  # noqa: S608 - constants only


class Migration(migrations.Migration):
    dependencies = [("failover", "0016_room_for_updates")]

    operations = [
        # A session keeps plans; one made while there were few users read all of them later.
        migrations.RunSQL(
            "ALTER FUNCTION failover_vm_moved() SET enable_seqscan = off",
            "ALTER FUNCTION failover_vm_moved() RESET enable_seqscan",
        ),
        migrations.RunSQL(RETURNED, "DROP FUNCTION failover_vms_returned()"),
        migrations.RunSQL(
            "CREATE TRIGGER hosts_instance_failover_return AFTER INSERT ON hosts_instance "
            "REFERENCING NEW TABLE AS fresh FOR EACH STATEMENT "
            "EXECUTE FUNCTION failover_vms_returned()",
            "DROP TRIGGER hosts_instance_failover_return ON hosts_instance",
        ),
    ]
