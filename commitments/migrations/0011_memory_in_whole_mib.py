from django.db import migrations, models
from django.db.models.functions import Mod
from django.db.models.lookups import Exact


class Migration(migrations.Migration):
    dependencies = [("commitments", "0010_period_end_index")]

    operations = [
        migrations.AddConstraint(
            model_name="commitment",
            constraint=models.CheckConstraint(
                condition=~models.Q(resource_type="memory")
                | models.Q(
                    Exact(Mod(models.F("requested_amount"), models.Value(1048576)), models.Value(0))
                ),
                name="commitments_commitment_memory_whole_mib",
            ),
        ),
    ]
