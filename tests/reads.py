"""How much of a table a session reads."""

from __future__ import annotations

from journal.statements import fetch_rows


def rows_read(table: str) -> int:
    """Return how many rows of a table this session has read, as far as it counted them.

    What it counted is forgotten now and then, but not within a transaction.
    """
    ((rows,),) = fetch_rows(
        "SELECT pg_stat_get_xact_tuples_returned(%s::regclass)"
        " + pg_stat_get_xact_tuples_fetched(%s::regclass)",
        [table, table],
    )
    return int(rows)
