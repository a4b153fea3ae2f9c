from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("commitments", "0013_usage_trigger_plans"),
    ]

    operations = [
        migrations.CreateModel(
            name="CompactionRun",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("zone", models.CharField(max_length=255)),
                ("started_at", models.DateTimeField()),
                ("finished_at", models.DateTimeField(blank=True, null=True)),
                (
                    "outcome",
                    models.CharField(
                        blank=True,
                        choices=[
                            ("done", "done"),
                            ("limited", "stopped at its limit"),
                            ("busy", "stopped for others"),
                            ("refused", "facts not believed"),
                            ("failed", "failed"),
                            ("abandoned", "abandoned"),
                        ],
                        max_length=16,
                    ),
                ),
                (
                    "hosts_planned",
                    models.PositiveIntegerField(
                        default=0, help_text="hosts that were to become free"
                    ),
                ),
                ("hosts_freed", models.PositiveIntegerField(default=0)),
                ("slots_moved", models.PositiveIntegerField(default=0)),
                (
                    "hosts_refused",
                    models.PositiveIntegerField(
                        default=0,
                        help_text="hosts where others got in the way between plan and step",
                    ),
                ),
                (
                    "counts",
                    models.JSONField(default=dict, help_text="hosts of the zone by what they hold"),
                ),
                ("message", models.TextField(blank=True)),
                ("actor", models.CharField(blank=True, max_length=255)),
                ("request_id", models.CharField(blank=True, max_length=255)),
            ],
            options={
                "ordering": ("-id",),
                "indexes": [models.Index(fields=["zone", "id"], name="commitments_compaction_idx")],
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(("finished_at__isnull", True), ("outcome", "")),
                            models.Q(
                                models.Q(("outcome", ""), _negated=True),
                                ("finished_at__isnull", False),
                            ),
                            _connector="OR",
                        ),
                        name="commitments_compactionrun_outcome_at_end",
                    )
                ],
            },
        ),
    ]
