"""Drop indexes that others begin with, or that nothing reads: each hold wrote all of them."""

import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("capacity", "0023_intent_reason"),
        ("commitments", "0022_log_of_changes"),
        ("hosts", "0013_provider_of_host"),
    ]

    operations = [
        migrations.AlterField(
            model_name="reservation",
            name="commitment",
            field=models.ForeignKey(
                blank=True,
                db_index=False,
                null=True,
                on_delete=django.db.models.deletion.PROTECT,
                related_name="slots",
                to="commitments.commitment",
            ),
        ),
        migrations.AlterField(
            model_name="reservation",
            name="vm_uuid",
            field=models.CharField(
                blank=True, help_text="VM of an in-flight placement", max_length=64
            ),
        ),
        migrations.AlterField(
            model_name="reservation",
            name="zone",
            field=models.CharField(blank=True, max_length=255),
        ),
        migrations.AddIndex(
            model_name="reservation",
            index=models.Index(fields=["vm_uuid"], name="capacity_reserv_vm_idx"),
        ),
    ]
