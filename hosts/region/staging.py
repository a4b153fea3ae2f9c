"""Loading rows with COPY into temporary tables and merging them in one statement each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import orjson
from django.db import connection

from hosts.region.run import ImportRun, SectionCounts
from journal.statements import execute, fetch_row

BATCH_ROWS: Final = 2000


def as_json(payload: object) -> str:
    """Return a payload as JSON text for a COPY into a ``jsonb`` column."""
    return orjson.dumps(payload).decode()


class StagingTable:
    """A session-private table with the columns of a model's table, filled by COPY.

    Staging happens before the transaction of the import, so that no transaction waits for a file.
    """

    def __init__(
        self,
        run: ImportRun,
        *,
        table: str,
        columns: Sequence[str],
        extra: Sequence[str] = (),
        name: str = "",
    ) -> None:
        """Create the table.

        Args:
            run: The run; its end drops the table.
            table: Table whose column types are taken.
            columns: Columns taken from it.
            extra: Further columns as SQL, such as ``by_service boolean``.
            name: Its name, ``stage_`` and that of the table when left out.
        """
        self.name = name or f"stage_{table}"
        self._columns = tuple(columns) + tuple(column.split()[0] for column in extra)
        self._rows: list[tuple[object, ...]] = []
        self._is_open = True
        chosen = ", ".join(columns)
        execute(f"DROP TABLE IF EXISTS pg_temp.{self.name}")
        execute(
            f"CREATE TEMPORARY TABLE {self.name} AS SELECT {chosen} FROM {table} WITH NO DATA"  # noqa: S608 - names from code
        )
        for column in extra:
            execute(f"ALTER TABLE {self.name} ADD COLUMN {column}")
        run.closers.append(self.drop)

    def add(self, row: tuple[object, ...]) -> None:
        """Add a row: one value a column, JSON as text."""
        self._rows.append(row)
        if len(self._rows) >= BATCH_ROWS:
            self._flush()

    def finish(self) -> None:
        """Write what is left and tell the planner how much there is."""
        if self._is_open:
            self._flush()
            self._is_open = False
            execute(f"ANALYZE {self.name}")

    def drop(self) -> None:
        """Drop the table, unless the transaction is broken and takes it along anyway."""
        if not connection.needs_rollback:
            execute(f"DROP TABLE IF EXISTS pg_temp.{self.name}")

    def _flush(self) -> None:
        if self._rows:
            copy_rows(self.name, self._columns, self._rows)
            self._rows.clear()


def copy_rows(table: str, columns: Sequence[str], rows: Iterable[tuple[object, ...]]) -> None:
    """COPY rows into a table."""
    statement = f"COPY {table} ({', '.join(columns)}) FROM STDIN"
    with connection.cursor() as cursor, cursor.copy(statement) as copy:
        for row in rows:
            copy.write_row(row)


@dataclass(frozen=True, slots=True, kw_only=True)
class Merge:
    """How staged rows become rows of a table.

    Attributes:
        table: Target table.
        key: Its unique column that identifies a row.
        columns: Compared and written columns, the key among them.
        source: SELECT that yields ``columns``; the staging table as it is when empty.
        on_insert: Further columns of new rows, with their SQL values.
        has_generation: The row's ``generation`` grows when it changes.
    """

    table: str
    key: str
    columns: Sequence[str]
    source: str = ""
    on_insert: Mapping[str, str] = field(default_factory=dict)
    has_generation: bool = False


def merge(merge: Merge, counts: SectionCounts) -> None:
    """Insert new rows, update those that differ, and touch no other.

    Rows are locked in the order of their key. Runs inside the caller's transaction.
    """
    columns = ", ".join(merge.columns)
    source = merge.source or f"SELECT {columns} FROM stage_{merge.table}"  # noqa: S608 - names from code
    now = "statement_timestamp()"
    on_insert = {**merge.on_insert, "created_at": now, "updated_at": now}
    target = ", ".join([columns, *on_insert])
    chosen = ", ".join([*(f"i.{name}" for name in merge.columns), *on_insert.values()])
    compared = [name for name in merge.columns if name != merge.key]
    old = ", ".join(f"t.{name}" for name in compared)
    new = ", ".join(f"i.{name}" for name in compared)
    assignments = [f"{name} = excluded.{name}" for name in compared]
    if merge.has_generation:
        assignments.append(f"generation = {merge.table}.generation + 1")
    statement = f"""
        WITH incoming AS MATERIALIZED ({source}),
        written AS (
            INSERT INTO {merge.table} ({target})
            SELECT {chosen}
            FROM incoming i LEFT JOIN {merge.table} t ON t.{merge.key} = i.{merge.key}
            WHERE t.{merge.key} IS NULL OR ({old}) IS DISTINCT FROM ({new})
            ORDER BY i.{merge.key}
            ON CONFLICT ({merge.key}) DO UPDATE SET {", ".join(assignments)}
            RETURNING (xmax = 0) AS is_new
        )
        SELECT (SELECT count(*) FROM incoming),
               count(*) FILTER (WHERE is_new), count(*) FILTER (WHERE NOT is_new)
        FROM written
    """  # noqa: S608 - names from code
    total, created, updated = fetch_row(statement)
    counts.created += created
    counts.updated += updated
    counts.unchanged += total - created - updated
