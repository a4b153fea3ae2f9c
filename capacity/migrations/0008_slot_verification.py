from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("capacity", "0007_failover_users"),
        ("hosts", "0004_scheduling_facts"),
    ]

    operations = [
        migrations.AddField(
            model_name="reservationallocation",
            name="missing_since",
            field=models.DateTimeField(
                blank=True, help_text="when a VM that was seen was first listed nowhere", null=True
            ),
        ),
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
                ],
                max_length=64,
            ),
        ),
        migrations.AddIndex(
            model_name="reservationallocation",
            index=models.Index(
                condition=models.Q(("state", "expected")),
                fields=["since"],
                name="capacity_reserv_expected_idx",
            ),
        ),
        migrations.AddConstraint(
            model_name="reservationallocation",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    ("state", "expected"), ("missing_since__isnull", True), _connector="OR"
                ),
                name="capacity_reservationallocation_missing_is_expected",
            ),
        ),
    ]
