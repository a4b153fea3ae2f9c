from django.contrib.postgres.operations import AddIndexConcurrently
from django.db import migrations, models


class Migration(migrations.Migration):
    atomic = False

    dependencies = [("commitments", "0008_host_list_refusal")]

    operations = [
        AddIndexConcurrently(
            model_name="commitmentevent",
            index=models.Index(
                condition=models.Q(("after__isnull", True)),
                fields=["created_at"],
                name="commitments_event_gone_idx",
            ),
        ),
    ]
