from django.db import migrations

# What decides whether a reservation may stay on its host changed: validate it now, not in half an
# hour. Whoever writes the host, the note is in the same transaction.
FOLLOW = """
CREATE FUNCTION failover_host_changed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    UPDATE failover_failoverreservation AS known SET next_validation_at = now()
      FROM capacity_reservation AS held
     WHERE held.id = known.reservation_id AND held.kind = 'failover'
       AND held.target_host_id = NEW.id AND known.next_validation_at > now();
    RETURN NULL;
END
$$
"""

COLUMNS = (
    "state, status, maintenance, conditions, zone, traits, custom_traits, aggregate_uuids, "
    "allowed_projects, effective_memory_bytes, effective_vcpus"
)
OLD = ", ".join(f"OLD.{name}" for name in COLUMNS.split(", "))
NEW = ", ".join(f"NEW.{name}" for name in COLUMNS.split(", "))


class Migration(migrations.Migration):
    dependencies = [
        ("failover", "0006_enforce_rules"),
        ("hosts", "0005_reported_instances"),
    ]

    operations = [
        migrations.RunSQL(FOLLOW, "DROP FUNCTION failover_host_changed()"),
        migrations.RunSQL(
            f"CREATE TRIGGER hosts_host_failover_change AFTER UPDATE OF {COLUMNS} ON hosts_host "
            f"FOR EACH ROW WHEN (({OLD}) IS DISTINCT FROM ({NEW})) "
            "EXECUTE FUNCTION failover_host_changed()",
            "DROP TRIGGER hosts_host_failover_change ON hosts_host",
        ),
    ]
