from django.db import migrations

ALLOCATIONS = "capacity_reservationallocation"
SLOTS = "failover_failoverreservation"

# Who changes users of a reservation holds its row first, so that validation, which writes that row
# and then its users, and a VM that leaves do not wait for each other.
LOCK = f"""
    PERFORM FROM {SLOTS}
      WHERE reservation_id IN (SELECT reservation_id FROM {ALLOCATIONS}
                                WHERE vm_uuid = NEW.openstack_id AND vm_host_id <> NEW.host_id)
      ORDER BY reservation_id FOR NO KEY UPDATE;
"""  # noqa: S608 - constants only

LEAVE = f"""
CREATE OR REPLACE FUNCTION failover_vm_moved() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN{{lock}}
    WITH gone AS (
        DELETE FROM {ALLOCATIONS}
         WHERE vm_uuid = NEW.openstack_id AND vm_host_id <> NEW.host_id
        RETURNING reservation_id
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
    dependencies = [("failover", "0010_check_rules_by_arrays")]

    operations = [migrations.RunSQL(LEAVE.format(lock=LOCK), LEAVE.format(lock=""))]
