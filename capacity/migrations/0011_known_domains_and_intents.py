from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("capacity", "0010_scheduling_knowledge")]

    operations = [
        migrations.AddConstraint(
            model_name="reservation",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    scheduling_domain__in=("nova", "cinder", "manila", "machines", "pods")
                ),
                name="capacity_reservation_scheduling_domain_known",
            ),
        ),
        migrations.AddConstraint(
            model_name="reservation",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    intent__in=(
                        "",
                        "unknown",
                        "create",
                        "rebuild",
                        "resize",
                        "live_migration",
                        "evacuate",
                        "reserve_for_failover",
                        "reuse_failover_reservation",
                        "reserve_for_committed_resource",
                        "capacity_probe",
                    )
                ),
                name="capacity_reservation_intent_known",
            ),
        ),
    ]
