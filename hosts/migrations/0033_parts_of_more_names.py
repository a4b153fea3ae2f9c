"""Parts of names of domains, flavors, aggregates, images and server groups are found, too."""

from django.contrib.postgres.indexes import GinIndex, OpClass
from django.contrib.postgres.operations import AddIndexConcurrently
from django.db import migrations
from django.db.models.functions import Upper


def parts_of_names(model: str) -> AddIndexConcurrently:
    parts = OpClass(Upper("name"), name="gin_trgm_ops")
    return AddIndexConcurrently(
        model_name=model, index=GinIndex(parts, name=f"hosts_{model}_parts_idx")
    )


class Migration(migrations.Migration):
    atomic = False
    dependencies = [
        ("hosts", "0032_more_orders"),
    ]

    operations = [
        parts_of_names(model) for model in ("domain", "flavor", "aggregate", "image", "servergroup")
    ]
