"""Statistics of tables that were just filled.

PostgreSQL looks at a table that grew about a minute later. Until then statements on it are planned,
and plans that sessions keep (those of foreign keys and triggers too) stay as they were made, for
the table that it was before. Who writes in bulk has it looked at at once.
"""

from __future__ import annotations

from typing import Final

import structlog
from django.db import connection
from psycopg import sql

log = structlog.get_logger(__name__)

FEW_PAGES: Final = 16

# Twice as large as when it was looked at last, so that filling a table costs a few looks in all.
GROWN: Final = """
SELECT relname FROM pg_class
 WHERE relnamespace = current_schema()::regnamespace AND relkind = 'r'
   AND pg_relation_size(oid) / current_setting('block_size')::bigint > 2 * relpages + %s
 ORDER BY relname
"""


def analyze_grown_tables() -> tuple[str, ...]:
    """Have PostgreSQL look at the tables that have doubled since it last did; return their names.

    A table that another session analyses or alters now is left to it.
    """
    with connection.cursor() as cursor:
        cursor.execute(GROWN, [FEW_PAGES])
        names = tuple(row[0] for row in cursor.fetchall())
        for name in names:
            cursor.execute(
                sql.SQL("ANALYZE (SKIP_LOCKED) {table}").format(table=sql.Identifier(name))
            )
    if names:
        log.debug("tables_analyzed", tables=names)
    return names
