"""Let slots say that they wait for the agent of their host."""

from django.contrib.postgres.operations import AddIndexConcurrently
from django.db import migrations, models


class Migration(migrations.Migration):
    atomic = False

    dependencies = [
        ("capacity", "0026_counted_from"),
        ("commitments", "0025_accounts_of_projects"),
        ("hosts", "0027_slots_held_off"),
    ]

    operations = [
        migrations.AlterField(
            model_name="reservation",
            name="ready_reason",
            field=models.CharField(
                blank=True,
                choices=[
                    ("ReservationActive", "active"),
                    ("PreAllocated", "pre-allocated"),
                    ("NoHostsFound", "no hosts found"),
                    ("NoHostsAvailable", "no hosts known"),
                    ("PlacementRevoked", "placement revoked"),
                    ("MissingResourceName", "missing flavor name"),
                    ("FlavorNotFound", "flavor in no group"),
                    ("InvalidResources", "invalid resources"),
                    ("AwaitsAgent", "waits for the host's agent"),
                    ("AgentFailed", "the host's agent failed"),
                ],
                max_length=64,
            ),
        ),
        AddIndexConcurrently(
            model_name="reservation",
            index=models.Index(
                condition=models.Q(ready_reason__in=["AwaitsAgent", "AgentFailed"]),
                fields=["target_host"],
                name="capacity_reserv_agent_idx",
            ),
        ),
    ]
