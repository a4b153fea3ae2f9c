"""Find agents that make slots without reading the others."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("hosts", "0030_host_resources"),
    ]

    operations = [
        migrations.AddIndex(
            model_name="hostagent",
            index=models.Index(
                condition=models.Q(("decommissioned_at__isnull", True), ("mode", "enforce")),
                fields=["host_name"],
                name="hosts_agent_enforce_idx",
            ),
        ),
    ]
