"""Keys of agents that retire, and keys that the server signs with."""

import django.db.models.functions.datetime
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("hosts", "0023_parts_of_names"),
    ]

    operations = [
        migrations.CreateModel(
            name="ServerKey",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("kid", models.CharField(max_length=16, unique=True)),
                ("public_key", models.BinaryField(max_length=32)),
                ("sealed_seed", models.BinaryField()),
                (
                    "state",
                    models.CharField(
                        choices=[
                            ("active", "active"),
                            ("retiring", "retiring"),
                            ("revoked", "revoked"),
                        ],
                        default="active",
                        max_length=8,
                    ),
                ),
                (
                    "not_after",
                    models.DateTimeField(
                        blank=True, help_text="agents are told it until", null=True
                    ),
                ),
                ("signed_by", models.CharField(blank=True, max_length=16)),
                ("signature", models.BinaryField(max_length=64)),
                (
                    "created_at",
                    models.DateTimeField(
                        db_default=django.db.models.functions.datetime.Now(), editable=False
                    ),
                ),
            ],
            options={
                "ordering": ("-id",),
            },
        ),
        migrations.RemoveConstraint(
            model_name="hostkey",
            name="hosts_key_revoked_with_time",
        ),
        migrations.AddField(
            model_name="hostkey",
            name="not_after",
            field=models.DateTimeField(blank=True, help_text="end of one that retires", null=True),
        ),
        migrations.AlterField(
            model_name="hostkey",
            name="state",
            field=models.CharField(
                choices=[("active", "active"), ("retiring", "retiring"), ("revoked", "revoked")],
                default="active",
                max_length=8,
            ),
        ),
        migrations.AddConstraint(
            model_name="hostkey",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    models.Q(
                        ("not_after__isnull", True),
                        ("revoked_at__isnull", True),
                        ("state", "active"),
                    ),
                    models.Q(
                        ("not_after__isnull", False),
                        ("revoked_at__isnull", True),
                        ("state", "retiring"),
                    ),
                    models.Q(("revoked_at__isnull", False), ("state", "revoked")),
                    _connector="OR",
                ),
                name="hosts_key_ended_with_time",
            ),
        ),
        migrations.AddConstraint(
            model_name="serverkey",
            constraint=models.UniqueConstraint(
                condition=models.Q(("state", "active")),
                fields=("state",),
                name="hosts_serverkey_one_active",
            ),
        ),
        migrations.AddConstraint(
            model_name="serverkey",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    models.Q(("not_after__isnull", True), ("state", "active")),
                    models.Q(("not_after__isnull", False), ("state", "retiring")),
                    _connector="OR",
                ),
                name="hosts_serverkey_retires_with_time",
            ),
        ),
    ]
