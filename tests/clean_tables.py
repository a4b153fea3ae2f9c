"""Emptying what a test with real transactions wrote, at the cost of what it wrote.

Django truncates all tables, some hundred, and has every app fill its own again: permissions,
traits, the shipped pipelines. Here only tables with rows are emptied, and those that were filled
when the database was made get the same rows back if they were touched.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Self

from django.db import connection, transaction
from django.db.backends.utils import CursorWrapper

MAY_SWITCH_TRIGGERS_OFF = "SELECT has_parameter_privilege('session_replication_role', 'SET')"
WITHOUT_TRIGGERS = "SET LOCAL session_replication_role = replica"
ROWS = "SELECT '{table}', count(*), coalesce(sum(xmin::text::bigint), 0) FROM {table}"
LOCK = "LOCK TABLE {tables} IN SHARE ROW EXCLUSIVE MODE"
COLUMNS = """
SELECT string_agg(quote_ident(attname), ', ' ORDER BY attnum) FROM pg_attribute
 WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped AND attgenerated = ''
"""
HAS_ROWS = "SELECT '{table}' WHERE EXISTS (SELECT FROM {table})"

Print = tuple[int, int]


@dataclass(slots=True)
class CleanTables:
    """The tables of a database as they are before any test.

    Attributes:
        empty: Tables without rows.
        filled: Table to its rows, as COPY writes them.
        prints: Filled table to count and sum of ``xmin`` of its rows: any change changes them.
        is_selective: Whether only what was written is emptied, which needs a superuser.
    """

    empty: tuple[str, ...]
    filled: dict[str, bytes]
    prints: dict[str, Print]
    is_selective: bool

    @classmethod
    def now(cls) -> Self:
        """Remember the tables as they are."""
        tables = connection.introspection.django_table_names(
            only_existing=True, include_views=False
        )
        with connection.cursor() as cursor:
            cursor.execute(MAY_SWITCH_TRIGGERS_OFF)
            is_selective = cursor.fetchone() == (True,)
            filled = {table: _copied(cursor, table) for table in _with_rows(cursor, tables)}
            return cls(
                empty=tuple(sorted(set(tables) - set(filled))),
                filled=filled,
                prints=_prints(cursor, filled),
                is_selective=is_selective,
            )

    def restore(self) -> None:
        """Bring the tables back to what was remembered; their sequences go on.

        Whoever still writes, such as the connection of a killed process, is waited for.
        """
        with transaction.atomic(), connection.cursor() as cursor:
            changed = self._empty_written(cursor) if self.is_selective else self._empty_all(cursor)
            for table in changed:
                fill(cursor, table, self.filled[table])
            self.prints |= _prints(cursor, changed)

    def _empty_written(self, cursor: CursorWrapper) -> list[str]:
        """Delete all rows of tables that were written; return those that must be filled again."""
        cursor.execute(LOCK.format(tables=", ".join((*self.empty, *self.filled))))
        prints = _prints(cursor, self.filled)
        changed = [table for table in self.filled if prints[table] != self.prints[table]]
        written = [*_with_rows(cursor, self.empty), *changed]
        if written:
            cursor.execute(WITHOUT_TRIGGERS)
            cursor.execute("; ".join(f"DELETE FROM {table}" for table in written))  # noqa: S608 - names of our tables
        return changed

    def _empty_all(self, cursor: CursorWrapper) -> list[str]:
        cursor.execute(f"TRUNCATE {', '.join((*self.empty, *self.filled))}")
        return list(self.filled)


def _with_rows(cursor: CursorWrapper, tables: tuple[str, ...] | list[str]) -> list[str]:
    if not tables:
        return []
    cursor.execute(" UNION ALL ".join(HAS_ROWS.format(table=table) for table in tables))
    return [row[0] for row in cursor.fetchall()]


def _prints(cursor: CursorWrapper, tables: dict[str, bytes] | list[str]) -> dict[str, Print]:
    if not tables:
        return {}
    cursor.execute(" UNION ALL ".join(ROWS.format(table=table) for table in tables))
    return {table: (count, int(total)) for table, count, total in cursor.fetchall()}


def fill(cursor: CursorWrapper, table: str, rows: bytes) -> None:
    """Write rows as they were copied."""
    with cursor.copy(f"COPY {table} ({_columns_of(table)}) FROM STDIN") as copy:
        copy.write(rows)


def _copied(cursor: CursorWrapper, table: str) -> bytes:
    rows = f"SELECT {_columns_of(table)} FROM {table}"  # noqa: S608 - our table
    with cursor.copy(f"COPY ({rows}) TO STDOUT") as copy:
        return b"".join(bytes(block) for block in copy)


@cache
def _columns_of(table: str) -> str:
    """Return the columns of a table that are written, none that the database computes."""
    with connection.cursor() as cursor:
        cursor.execute(COLUMNS, [table])
        return str(cursor.fetchone()[0])
