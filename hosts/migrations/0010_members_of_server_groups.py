import django.contrib.postgres.indexes
from django.contrib.postgres.operations import AddIndexConcurrently
from django.db import migrations


class Migration(migrations.Migration):
    atomic = False

    dependencies = [
        ("hosts", "0009_times_of_the_database"),
    ]

    operations = [
        AddIndexConcurrently(
            model_name="servergroup",
            index=django.contrib.postgres.indexes.GinIndex(
                fields=["members"], name="hosts_servergroup_members"
            ),
        ),
    ]
