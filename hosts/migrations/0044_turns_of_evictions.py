"""When each host that VMs are to leave had its turn: the next is the one that waits longest."""

from __future__ import annotations

from typing import ClassVar

from django.db import migrations, models


class Migration(migrations.Migration):
    """A column that older releases need not know."""

    dependencies: ClassVar = [("hosts", "0043_fewer_indexes")]

    operations: ClassVar = [
        migrations.AddField(
            model_name="eviction",
            name="asked_at",
            field=models.DateTimeField(
                blank=True, help_text="when Nova's turn with it began last", null=True
            ),
        )
    ]
