"""Find VMs and projects by the beginning of their names."""

from django.contrib.postgres.operations import AddIndexConcurrently
from django.db import migrations, models


class Migration(migrations.Migration):
    atomic = False

    dependencies = [("hosts", "0015_self_described_hosts")]

    operations = [
        AddIndexConcurrently(
            model_name="instance",
            index=models.Index(
                fields=["name"], name="hosts_instance_name_idx", opclasses=["varchar_pattern_ops"]
            ),
        ),
        AddIndexConcurrently(
            model_name="project",
            index=models.Index(
                fields=["name"], name="hosts_project_name_idx", opclasses=["varchar_pattern_ops"]
            ),
        ),
    ]
