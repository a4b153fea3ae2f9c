"""How much PostgreSQL reads for a statement, and what it is made to believe of its tables.

Work is counted in rows, not in time: every row that a scan or a join of the executed plan looked
at. Statistics are put into the states in which a region that was just filled may find them.
"""

from __future__ import annotations

import enum
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from django.db import connection, transaction


class Statistics(enum.Enum):
    """What the planner knows of tables that are full.

    ``NEVER``: they were never analysed. ``EMPTY``: they were analysed when they were empty.
    ``EMPTIED``: when their rows had been deleted, which lets the planner expect one row.
    ``HALF``: when they held the rows of the first zone only. ``CURRENT``: as they are.
    """

    NEVER = "never"
    EMPTY = "empty"
    EMPTIED = "emptied"
    HALF = "half"
    CURRENT = "current"


FORGET = """
DELETE FROM pg_statistic WHERE starelid = ANY(%(tables)s::regclass[]);
UPDATE pg_class SET relpages = %(pages)s, reltuples = %(rows)s
 WHERE oid = ANY(%(tables)s::regclass[])
"""

NO_ROWS = {
    Statistics.NEVER: {"pages": 0, "rows": -1},
    Statistics.EMPTY: {"pages": 0, "rows": 0},
    Statistics.EMPTIED: {"pages": 9, "rows": 0},
}

# The server multiplies rows per page with the pages that it finds, so the pages stay as they are.
# Of what grows with the hosts, statistics hold a number of different ones and the commonest.
GROW = """
UPDATE pg_class SET reltuples = reltuples * %(times)s
 WHERE oid = ANY(%(tables)s::regclass[])
    OR oid IN (SELECT indexrelid FROM pg_index WHERE indrelid = ANY(%(tables)s::regclass[]));
UPDATE pg_statistic AS known
   SET stadistinct = CASE WHEN stadistinct > 0 THEN stadistinct * %(times)s ELSE stadistinct END,
       stakind1 = CASE WHEN stakind1 = 1 THEN 0 ELSE stakind1 END,
       stakind2 = CASE WHEN stakind2 = 1 THEN 0 ELSE stakind2 END
  FROM pg_attribute AS named
 WHERE starelid = ANY(%(tables)s::regclass[])
   AND attrelid = starelid AND attnum = staattnum
   AND (attname ~ '(host|commitment|reservation)_id$' OR attname IN ('host_name', 'vm_uuid'))
"""
EXPECTED = "EXPLAIN (FORMAT JSON) SELECT FROM {table}"

KEEP = "INSERT INTO late_{table} SELECT * FROM {table} WHERE {condition}"
TAKE_OUT = "DELETE FROM {table} WHERE id IN (SELECT id FROM late_{table})"
BRING_BACK = "INSERT INTO {table} SELECT * FROM late_{table}"


def believe(statistics: Statistics, tables: Sequence[str], *, others: dict[str, str]) -> None:
    """Bring the statistics of tables into a state; all of it ends with the test's transaction.

    Args:
        statistics: The state.
        tables: The tables.
        others: Table -> SQL condition of the rows that came after the statistics of ``HALF``.
    """
    with connection.cursor() as cursor:
        if known := NO_ROWS.get(statistics):
            cursor.execute(FORGET, {"tables": list(tables), **known})
            return
        late = others if statistics is Statistics.HALF else {}
        for table in tables if late else ():
            cursor.execute(f"ALTER TABLE {table} DISABLE TRIGGER USER")
        for table, condition in late.items():
            cursor.execute(f"CREATE TEMPORARY TABLE late_{table} AS TABLE {table} WITH NO DATA")
            cursor.execute(KEEP.format(table=table, condition=condition))
        for table in reversed(late):
            cursor.execute(TAKE_OUT.format(table=table))
        for table in tables:
            cursor.execute(f"ANALYZE {table}")
        for table in late:
            cursor.execute(BRING_BACK.format(table=table))
            cursor.execute(f"DROP TABLE late_{table}")
        for table in tables if late else ():
            cursor.execute(f"ALTER TABLE {table} ENABLE TRIGGER USER")


def believe_in_more(times: int, tables: Sequence[str]) -> None:
    """Let the planner expect a region so many times larger, with what else it knows of tables.

    All of it ends with the test's transaction.
    """
    with connection.cursor() as cursor:
        cursor.execute(GROW, {"tables": list(tables), "times": times})


def expected_rows(table: str) -> int:
    """Return how many rows the planner takes a table for."""
    with connection.cursor() as cursor:
        cursor.execute(EXPECTED.format(table=table))
        ((text,),) = cursor.fetchall()
    found = json.loads(text) if isinstance(text, str) else text
    return int(found[0]["Plan"]["Plan Rows"])


@contextmanager
def without_triggers(tables: Sequence[str]) -> Iterator[None]:
    """Leave out the triggers of tables while rows are made that nobody follows."""
    with connection.cursor() as cursor:
        cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")
        for table in tables:
            cursor.execute(f"ALTER TABLE {table} DISABLE TRIGGER USER")
        yield
        for table in tables:
            cursor.execute(f"ALTER TABLE {table} ENABLE TRIGGER USER")


@dataclass
class Work:
    """Statements that ran, each with the rows that its plan looked at."""

    rows: list[tuple[int, str]] = field(default_factory=list)

    @property
    def total(self) -> int:
        """Rows of all statements."""
        return sum(count for count, _ in self.rows)


@contextmanager
def measured_work(*, timeout: str = "30s") -> Iterator[Work]:
    """Count the rows that the plans of SELECT statements look at; each runs twice."""
    work = Work()

    def explain(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        for statement in str(sql).split(";"):
            if statement.lstrip().startswith(("SELECT", "WITH")):
                plan = _plan(execute, statement, params, context)
                work.rows.append((_rows_of(plan), " ".join(statement.split())))
        return execute(sql, params, many, context)

    with connection.cursor() as cursor:
        cursor.execute(f"SET LOCAL statement_timeout = '{timeout}'")
    with connection.execute_wrapper(explain):
        yield work


def _plan(execute: Any, statement: str, params: Any, context: Any) -> dict[str, Any]:
    with transaction.atomic():
        execute(f"EXPLAIN (ANALYZE, TIMING OFF, FORMAT JSON) {statement}", params, False, context)
        ((text,),) = context["cursor"].fetchall()
    found = json.loads(text) if isinstance(text, str) else text
    plan: dict[str, Any] = found[0]["Plan"]
    return plan


def _rows_of(node: dict[str, Any]) -> int:
    seen = 0
    if "Scan" in node["Node Type"] or node["Node Type"] in {"Nested Loop", "Hash Join"}:
        each = node["Actual Rows"] + sum(
            node.get(f"Rows Removed by {cause}", 0)
            for cause in ("Filter", "Join Filter", "Index Recheck")
        )
        seen = round(each * node["Actual Loops"])
    return seen + sum(_rows_of(child) for child in node.get("Plans", ()))
