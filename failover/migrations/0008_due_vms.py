from django.db import migrations, models
from django.db.models.functions import Now

QUEUE = "failover_duevm"
MOST_AT_ONCE = 200

# A VM came or changed: whoever writes it, the note is in the same transaction. Notes are only ever
# inserted here, so nobody waits for anybody. A statement that brings very many VMs, such as an
# import, leaves them to the next run of their zone.
CAME = f"""
CREATE FUNCTION failover_vms_came() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF (SELECT count(*) FROM (SELECT FROM fresh LIMIT {MOST_AT_ONCE + 1}) AS first_ones)
       <= {MOST_AT_ONCE} THEN
        INSERT INTO {QUEUE} (vm_uuid) SELECT openstack_id FROM fresh WHERE host_id IS NOT NULL;
    END IF;
    RETURN NULL;
END
$$
"""  # noqa: S608 - constants only

CHANGED = f"""
CREATE FUNCTION failover_vm_changed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO {QUEUE} (vm_uuid) VALUES (NEW.openstack_id);
    RETURN NULL;
END
$$
"""  # noqa: S608 - constants only

COLUMNS = ("host_id", "status", "flavor_name", "memory_bytes", "vcpus")
OLD = ", ".join(f"OLD.{name}" for name in COLUMNS)
NEW = ", ".join(f"NEW.{name}" for name in COLUMNS)


class Migration(migrations.Migration):
    dependencies = [
        ("failover", "0007_follow_hosts"),
        ("hosts", "0005_reported_instances"),
    ]

    operations = [
        migrations.CreateModel(
            name="DueVM",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("vm_uuid", models.CharField(max_length=64)),
                ("noted_at", models.DateTimeField(db_default=Now())),
            ],
            options={"verbose_name": "due VM", "ordering": ("id",)},
        ),
        migrations.RunSQL(CAME, "DROP FUNCTION failover_vms_came()"),
        migrations.RunSQL(CHANGED, "DROP FUNCTION failover_vm_changed()"),
        migrations.RunSQL(
            "CREATE TRIGGER hosts_instance_failover_came AFTER INSERT ON hosts_instance "
            "REFERENCING NEW TABLE AS fresh FOR EACH STATEMENT "
            "EXECUTE FUNCTION failover_vms_came()",
            "DROP TRIGGER hosts_instance_failover_came ON hosts_instance",
        ),
        migrations.RunSQL(
            f"CREATE TRIGGER hosts_instance_failover_change AFTER UPDATE OF {', '.join(COLUMNS)} "
            f"ON hosts_instance FOR EACH ROW WHEN (NEW.host_id IS NOT NULL AND ({OLD}) "
            f"IS DISTINCT FROM ({NEW})) EXECUTE FUNCTION failover_vm_changed()",
            "DROP TRIGGER hosts_instance_failover_change ON hosts_instance",
        ),
    ]
