from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("commitments", "0011_memory_in_whole_mib")]

    operations = [
        migrations.AddConstraint(
            model_name="commitment",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    scheduling_domain__in=("nova", "cinder", "manila", "machines", "pods")
                ),
                name="commitments_commitment_scheduling_domain_known",
            ),
        ),
    ]
