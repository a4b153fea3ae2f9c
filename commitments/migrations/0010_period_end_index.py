from django.contrib.postgres.operations import AddIndexConcurrently
from django.db import migrations, models


class Migration(migrations.Migration):
    atomic = False

    dependencies = [("commitments", "0009_gone_commitments_index")]

    operations = [
        AddIndexConcurrently(
            model_name="assignmentperiod",
            index=models.Index(
                condition=models.Q(("valid_to__isnull", False)),
                fields=["valid_to"],
                name="commitments_period_end_idx",
            ),
        ),
    ]
