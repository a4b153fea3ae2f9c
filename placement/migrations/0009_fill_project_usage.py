"""What projects use so far; may run again."""

from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [("placement", "0008_project_usage")]

    operations = [
        migrations.RunSQL(
            "SELECT placement_rebuild_project_usage()", "DELETE FROM placement_project_usage"
        )
    ]
