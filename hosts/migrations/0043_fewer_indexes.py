"""Each VM that is written has four index entries less.

Projects begin another index, and nobody asks how names of flavors or words of states begin.
"""

from django.db import migrations, models


class Migration(migrations.Migration):
    atomic = False
    dependencies = [("hosts", "0042_agent_versions")]

    operations = [
        migrations.AlterField(
            model_name="instance",
            name="project_id",
            field=models.CharField(max_length=64),
        ),
        migrations.RunSQL(
            [
                "DROP INDEX CONCURRENTLY IF EXISTS hosts_instance_flavor_name_67c165c2_like",
                "DROP INDEX CONCURRENTLY IF EXISTS hosts_instance_status_f28706e7_like",
            ],
            migrations.RunSQL.noop,
        ),
    ]
