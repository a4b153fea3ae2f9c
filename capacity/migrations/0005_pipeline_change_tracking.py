from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [
        ("capacity", "0004_scheduling"),
        ("journal", "0002_change_tracking_functions"),
    ]

    operations = [
        migrations.RunSQL(
            "CREATE TRIGGER capacity_pipeline_track_change BEFORE INSERT OR UPDATE "
            "ON capacity_pipeline FOR EACH ROW EXECUTE FUNCTION headroom_track_change()",
            "DROP TRIGGER capacity_pipeline_track_change ON capacity_pipeline",
        ),
        migrations.RunSQL(
            "CREATE TRIGGER capacity_pipeline_log_deletion AFTER DELETE ON capacity_pipeline "
            "REFERENCING OLD TABLE AS gone FOR EACH STATEMENT "
            "EXECUTE FUNCTION headroom_log_deletion()",
            "DROP TRIGGER capacity_pipeline_log_deletion ON capacity_pipeline",
        ),
    ]
