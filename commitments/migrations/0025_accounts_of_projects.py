"""Find what the commitments of a project were used for."""

from django.contrib.postgres.operations import AddIndexConcurrently
from django.db import migrations, models


class Migration(migrations.Migration):
    atomic = False

    dependencies = [("commitments", "0024_usage_hours")]

    operations = [
        AddIndexConcurrently(
            model_name="commitmentaccount",
            index=models.Index(fields=["project_id"], name="commitments_account_proj_idx"),
        ),
    ]
