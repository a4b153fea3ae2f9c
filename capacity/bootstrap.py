"""What a database gets after it was migrated: the pipelines of the product (scheduling, 9)."""

from __future__ import annotations

from uuid import uuid4

from django.db import DEFAULT_DB_ALIAS, connections

from capacity.models import Pipeline
from capacity.nova.pipelines import ensure_shipped_pipelines


def create_shipped_pipelines(*, using: str = DEFAULT_DB_ALIAS, **_: object) -> None:
    """Create shipped pipelines that are missing, once the tables are as this release has them.

    A database migrated to an earlier state is left alone.
    """
    if using == DEFAULT_DB_ALIAS and _has_tables(using):
        ensure_shipped_pipelines(request_id=f"req-{uuid4()}")


def _has_tables(using: str) -> bool:
    connection = connections[using]
    table = Pipeline._meta.db_table  # noqa: SLF001 - Django's documented model API
    wanted = {field.column for field in Pipeline._meta.concrete_fields}  # noqa: SLF001 - likewise
    with connection.cursor() as cursor:
        names = connection.introspection.table_names(cursor)
        if not {table, "journal_auditentry", "journal_outbox"} <= set(names):
            return False
        described = connection.introspection.get_table_description(cursor, table)
    return wanted <= {column.name for column in described}
