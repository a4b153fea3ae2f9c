from django.db import migrations

TABLE = "failover_failoverreservation"


class Migration(migrations.Migration):
    dependencies = [
        ("failover", "0003_reservations_and_runs"),
        ("journal", "0002_change_tracking_functions"),
    ]

    operations = [
        migrations.RunSQL(
            f"CREATE TRIGGER {TABLE}_track_change BEFORE INSERT OR UPDATE ON {TABLE} "
            "FOR EACH ROW EXECUTE FUNCTION headroom_track_change()",
            f"DROP TRIGGER {TABLE}_track_change ON {TABLE}",
        ),
        migrations.RunSQL(
            f"CREATE TRIGGER {TABLE}_log_deletion AFTER DELETE ON {TABLE} "
            "REFERENCING OLD TABLE AS gone FOR EACH STATEMENT "
            "EXECUTE FUNCTION headroom_log_deletion()",
            f"DROP TRIGGER {TABLE}_log_deletion ON {TABLE}",
        ),
    ]
