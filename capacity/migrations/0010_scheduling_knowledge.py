from django.db import migrations, models

import journal.models

NAMES = [
    ("host-utilization", "utilisation of VMware hosts"),
    ("vmware-long-term-contended-hosts", "long-term CPU contention"),
    ("vmware-short-term-contended-hosts", "short-term CPU contention"),
    ("vmware-project-noisiness", "CPU of projects on hosts"),
]
TABLE = "capacity_schedulingknowledge"


class Migration(migrations.Migration):
    dependencies = [
        ("capacity", "0009_quota_usage"),
        ("journal", "0002_change_tracking_functions"),
    ]

    operations = [
        migrations.CreateModel(
            name="SchedulingKnowledge",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                (
                    "changed_xid",
                    models.BigIntegerField(
                        db_default=journal.models.CurrentTransactionID(),
                        db_index=True,
                        editable=False,
                    ),
                ),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                ("updated_at", models.DateTimeField(auto_now=True)),
                ("name", models.CharField(choices=NAMES, max_length=64, unique=True)),
                ("facts", models.JSONField(blank=True, default=dict)),
                ("expires_at", models.DateTimeField(blank=True, null=True)),
            ],
            options={
                "verbose_name_plural": "scheduling knowledge",
                "ordering": ("name",),
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(("name__in", [name for name, _ in NAMES])),
                        name="capacity_schedulingknowledge_name_known",
                    )
                ],
            },
        ),
        migrations.RunSQL(
            f"CREATE TRIGGER {TABLE}_track_change BEFORE INSERT OR UPDATE "
            f"ON {TABLE} FOR EACH ROW EXECUTE FUNCTION headroom_track_change()",
            f"DROP TRIGGER {TABLE}_track_change ON {TABLE}",
        ),
        migrations.RunSQL(
            f"CREATE TRIGGER {TABLE}_log_deletion AFTER DELETE ON {TABLE} "
            "REFERENCING OLD TABLE AS gone FOR EACH STATEMENT "
            "EXECUTE FUNCTION headroom_log_deletion()",
            f"DROP TRIGGER {TABLE}_log_deletion ON {TABLE}",
        ),
    ]
