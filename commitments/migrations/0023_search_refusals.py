"""Find refused requests by commitment and project."""

from django.contrib.postgres.indexes import GinIndex
from django.contrib.postgres.operations import AddIndexConcurrently
from django.db import migrations


class Migration(migrations.Migration):
    atomic = False

    dependencies = [("commitments", "0022_log_of_changes")]

    operations = [
        AddIndexConcurrently(
            model_name="refusedchange",
            index=GinIndex(
                fields=["asked"],
                name="commitments_refused_asked_idx",
                opclasses=["jsonb_path_ops"],
            ),
        ),
    ]
