from django.db import migrations

# Of databases of before functions were files (ADR 0028); nobody calls them any more.
GONE = """
DROP FUNCTION IF EXISTS journal_follow, journal_unfollow, capacity_touched_reservations
"""


class Migration(migrations.Migration):
    dependencies = [("journal", "0008_log_of_changes")]

    operations = [migrations.RunSQL(GONE, migrations.RunSQL.noop)]
