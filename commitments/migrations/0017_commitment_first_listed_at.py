"""When a sync first found a commitment in Limes; none for what no sync ever found."""

from __future__ import annotations

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("commitments", "0016_refused_changes")]

    operations = [
        migrations.AddField(
            model_name="commitment",
            name="first_listed_at",
            field=models.DateTimeField(
                blank=True,
                help_text="start of the first sync that found it in Limes",
                null=True,
            ),
        ),
    ]
