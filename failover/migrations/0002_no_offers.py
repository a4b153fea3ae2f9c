"""Drop a function that nobody calls; migrations made it, so no file of SQL answers for it."""

from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [("failover", "0001_squashed_0018_fenced_plans")]

    operations = [
        migrations.RunSQL(
            "DROP FUNCTION IF EXISTS failover_offers(bigint[])", migrations.RunSQL.noop
        )
    ]
