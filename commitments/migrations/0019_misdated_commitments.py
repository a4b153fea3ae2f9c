from django.contrib.postgres.operations import AddIndexConcurrently
from django.db import migrations, models


class Migration(migrations.Migration):
    atomic = False

    dependencies = [("commitments", "0018_times_of_the_database")]

    operations = [
        AddIndexConcurrently(
            model_name="commitment",
            index=models.Index(
                condition=models.Q(("ready_reason", "Reserving")),
                fields=["next_reconcile_at"],
                name="commitments_waiting_idx",
            ),
        ),
        AddIndexConcurrently(
            model_name="commitment",
            index=models.Index(
                condition=models.Q(
                    ("next_reconcile_at__isnull", True), ("ready_reason", "Expired")
                ),
                fields=["end_time"],
                name="commitments_ended_idx",
            ),
        ),
    ]
