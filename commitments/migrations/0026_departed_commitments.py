"""Tell commitments that left a project from VMs that did."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("commitments", "0025_accounts_of_projects")]

    operations = [
        migrations.AddField(
            model_name="projectdeparture",
            name="is_of_commitment",
            field=models.BooleanField(db_default=False),
        ),
    ]
