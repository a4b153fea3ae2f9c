"""Keep the coverage of flavors with each account: a page would count all VMs for it."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("failover", "0003_events_of_vms")]

    operations = [
        migrations.AddField(
            model_name="coverageaccount",
            name="flavors",
            field=models.JSONField(db_default=[], default=list),
        ),
    ]
