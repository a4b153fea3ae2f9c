from django.db import migrations

# The time of the last change is the best that is known of hosts that are out already.
FILL = """
UPDATE hosts_host
   SET down_since = CASE WHEN state = 'down' THEN updated_at END,
       terminating_since = CASE WHEN maintenance = 'termination' THEN updated_at END
 WHERE (state = 'down' AND down_since IS NULL)
    OR (maintenance = 'termination' AND terminating_since IS NULL)
"""


class Migration(migrations.Migration):
    dependencies = [("hosts", "0007_down_since")]

    operations = [migrations.RunSQL(FILL, migrations.RunSQL.noop)]
