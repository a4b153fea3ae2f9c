"""Loading rows with COPY into temporary tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import orjson
from django.db import connection, transaction

from hosts.region.run import ImportRun
from journal.statements import execute

BATCH_ROWS: Final = 2000


def as_json(payload: object) -> str:
    """Return a payload as JSON text for a COPY into a ``jsonb`` column."""
    return orjson.dumps(payload).decode()


class StagingTable:
    """A session-private table with the columns of a model's table, filled by COPY.

    Staging happens before the transaction of the import, so that no transaction waits for a file.
    Behind a pooler the run keeps its session (:func:`journal.statements.one_session`).
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
            with transaction.atomic(savepoint=False):
                copy_rows(self.name, self._columns, self._rows)
            self._rows.clear()


def copy_rows(table: str, columns: Sequence[str], rows: Iterable[tuple[object, ...]]) -> None:
    """COPY rows into a table."""
    statement = f"COPY {table} ({', '.join(columns)}) FROM STDIN"
    with connection.cursor() as cursor, cursor.copy(statement) as copy:
        for row in rows:
            copy.write_row(row)
