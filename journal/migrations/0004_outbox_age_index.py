from django.contrib.postgres.operations import AddIndexConcurrently
from django.db import migrations, models


class Migration(migrations.Migration):
    atomic = False

    dependencies = [("journal", "0003_pruned_log")]

    operations = [
        AddIndexConcurrently(
            "outbox",
            models.Index(fields=["created_at"], name="journal_outbox_age_idx"),
        ),
    ]
