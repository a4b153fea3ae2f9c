"""Orders of overcommit and high availability of hosts, and why their conditions stand so."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("hosts", "0031_enforcing_agents"),
    ]

    operations = [
        migrations.AddField(
            model_name="host",
            name="ordered_overcommit",
            field=models.JSONField(
                blank=True,
                help_text="cpu, memory to the ratio that an operator ordered; empty if the cloud says "
                "it",
                null=True,
            ),
        ),
        migrations.AddField(
            model_name="host",
            name="high_availability",
            field=models.BooleanField(
                db_default=True,
                default=True,
                help_text="whether its VMs are to start elsewhere when it dies",
            ),
        ),
        migrations.AddField(
            model_name="host",
            name="condition_reasons",
            field=models.JSONField(
                blank=True,
                db_default={},
                default=dict,
                help_text="condition type to its reason and message, as far as the host tells them",
            ),
        ),
    ]
