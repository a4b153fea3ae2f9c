"""Find the events of a VM."""

from django.contrib.postgres.operations import AddIndexConcurrently
from django.db import migrations, models


class Migration(migrations.Migration):
    atomic = False

    dependencies = [("failover", "0002_no_offers")]

    operations = [
        AddIndexConcurrently(
            model_name="failoverevent",
            index=models.Index(fields=["vm_uuid", "-id"], name="failover_event_vm_idx"),
        ),
    ]
