"""Parts of names are found by an index."""

from django.contrib.postgres.indexes import GinIndex, OpClass
from django.contrib.postgres.operations import AddIndexConcurrently, TrigramExtension
from django.db import migrations
from django.db.models.functions import Upper


def parts_of_names(name: str) -> GinIndex:
    return GinIndex(OpClass(Upper("name"), name="gin_trgm_ops"), name=name)


class Migration(migrations.Migration):
    atomic = False
    dependencies = [
        ("hosts", "0022_host_leases"),
    ]

    operations = [
        TrigramExtension(),
        AddIndexConcurrently(model_name="host", index=parts_of_names("hosts_host_parts_idx")),
        AddIndexConcurrently(
            model_name="instance", index=parts_of_names("hosts_instance_parts_idx")
        ),
        AddIndexConcurrently(model_name="project", index=parts_of_names("hosts_project_parts_idx")),
    ]
