"""Parts of names are found by an index."""

import django.contrib.postgres.indexes
from django.contrib.postgres.operations import TrigramExtension
from django.db import migrations
from django.db.models.functions import Upper


def parts_of_names(name: str) -> django.contrib.postgres.indexes.GinIndex:
    return django.contrib.postgres.indexes.GinIndex(
        django.contrib.postgres.indexes.OpClass(Upper("name"), name="gin_trgm_ops"), name=name
    )


class Migration(migrations.Migration):
    dependencies = [
        ("hosts", "0022_host_leases"),
    ]

    operations = [
        TrigramExtension(),
        migrations.AddIndex(model_name="host", index=parts_of_names("hosts_host_parts_idx")),
        migrations.AddIndex(
            model_name="instance", index=parts_of_names("hosts_instance_parts_idx")
        ),
        migrations.AddIndex(model_name="project", index=parts_of_names("hosts_project_parts_idx")),
    ]
