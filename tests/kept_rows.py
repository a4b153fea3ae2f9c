"""Rows that many tests begin with: made once in the ordinary way, then copied into place."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

from django.db import connection, transaction

from tests.clean_tables import WITHOUT_TRIGGERS, CleanTables, fill

WITH_TRIGGERS = "SET LOCAL session_replication_role = origin"


@dataclass(frozen=True, slots=True)
class KeptRows:
    """What was written, with all that triggers made of it.

    Attributes:
        tables: Table to its rows, as COPY writes them.
        had_rows: Tables of these that have rows in every database.
        may_be_put: Whether triggers may be switched off here, which needs a superuser.
    """

    tables: dict[str, bytes]
    had_rows: frozenset[str]
    may_be_put: bool

    @classmethod
    def made_by(cls, make: Callable[[], None]) -> Self:
        """Make the rows, and remember them."""
        before = CleanTables.now()
        make()
        after = CleanTables.now()
        written = {
            table: rows
            for table, rows in after.filled.items()
            if after.prints[table] != before.prints.get(table)
        }
        return cls(
            tables=written,
            had_rows=frozenset(written) & frozenset(before.filled),
            may_be_put=before.is_selective,
        )

    def put(self) -> None:
        """Write the same rows into a database without them; sequences are beyond their keys."""
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute(WITHOUT_TRIGGERS)
            for table, rows in self.tables.items():
                if table in self.had_rows:
                    cursor.execute(f"DELETE FROM {table}")  # noqa: S608 - names of our tables
                fill(cursor, table, rows)
            cursor.execute(WITH_TRIGGERS)
