from django.db import migrations

TRACKED_TABLES = (
    "hosts_domain",
    "hosts_project",
    "hosts_flavor",
    "hosts_aggregate",
    "hosts_host",
    "hosts_image",
    "hosts_servergroup",
    "hosts_instance",
)


def track(table: str) -> list[migrations.RunSQL]:
    return [
        migrations.RunSQL(
            f"CREATE TRIGGER {table}_track_change BEFORE INSERT OR UPDATE ON {table} "
            "FOR EACH ROW EXECUTE FUNCTION headroom_track_change()",
            f"DROP TRIGGER {table}_track_change ON {table}",
        ),
        migrations.RunSQL(
            f"CREATE TRIGGER {table}_log_deletion AFTER DELETE ON {table} "
            "REFERENCING OLD TABLE AS gone FOR EACH STATEMENT "
            "EXECUTE FUNCTION headroom_log_deletion()",
            f"DROP TRIGGER {table}_log_deletion ON {table}",
        ),
    ]


class Migration(migrations.Migration):
    dependencies = [
        ("hosts", "0001_initial"),
        ("journal", "0002_change_tracking_functions"),
    ]

    operations = [operation for table in TRACKED_TABLES for operation in track(table)]
