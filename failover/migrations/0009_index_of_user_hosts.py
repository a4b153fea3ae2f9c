from django.db import migrations

# Which reservations have a user on a host: asked for one VM at a time. Only failover has such rows.
CREATE = """
CREATE INDEX CONCURRENTLY failover_user_hosts_idx ON capacity_reservationallocation (vm_host_id)
INCLUDE (reservation_id) WHERE vm_host_id IS NOT NULL
"""


class Migration(migrations.Migration):
    atomic = False

    dependencies = [
        ("failover", "0008_due_vms"),
        ("capacity", "0007_failover_users"),
    ]

    operations = [
        migrations.RunSQL(CREATE, "DROP INDEX CONCURRENTLY IF EXISTS failover_user_hosts_idx"),
    ]
