"""Parts of names of flavor groups are found by an index."""

from django.contrib.postgres.indexes import GinIndex, OpClass
from django.contrib.postgres.operations import AddIndexConcurrently
from django.db import migrations
from django.db.models.functions import Upper


class Migration(migrations.Migration):
    atomic = False
    dependencies = [
        ("capacity", "0030_leaving_resources"),
        ("hosts", "0023_parts_of_names"),  # has the extension
    ]

    operations = [
        AddIndexConcurrently(
            model_name="flavorgroup",
            index=GinIndex(
                OpClass(Upper("name"), name="gin_trgm_ops"), name="capacity_group_parts_idx"
            ),
        ),
    ]
