"""Statements of our own on Django's connection, a call each; inside the caller's transaction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, cast

from django.db import connection

Row = tuple[Any, ...]  # Any: columns of several types
#: ``None`` leaves percent signs as they are.
Parameters = Sequence[Any] | Mapping[str, Any] | None  # Any: values of several types


def execute(statement: str, parameters: Parameters = None) -> int:
    """Run a statement; return how many rows it wrote or found."""
    with connection.cursor() as cursor:
        cursor.execute(statement, parameters)
        return int(cursor.rowcount)


def fetch_rows(statement: str, parameters: Parameters = None) -> list[Row]:
    """Return the rows of a statement."""
    with connection.cursor() as cursor:
        cursor.execute(statement, parameters)
        return list(cursor.fetchall())


def fetch_row(statement: str, parameters: Parameters = None) -> Row:
    """Return the first row of a statement that always has one."""
    with connection.cursor() as cursor:
        cursor.execute(statement, parameters)
        return cast("Row", cursor.fetchone())


def fetch_value(statement: str, parameters: Parameters = None) -> Any:  # Any: of any type
    """Return the first column of a statement's first row; None where there is none."""
    with connection.cursor() as cursor:
        cursor.execute(statement, parameters)
        row = cursor.fetchone()
        return row[0] if row else None


def fetch_together(statements: Sequence[str], parameters: Parameters = None) -> list[list[Row]]:
    """Return the rows of several statements, sent as one: they cost one round trip.

    Each sees what was committed before it ran, as if sent by itself.

    Args:
        statements: Queries, none of which ends in a semicolon.
        parameters: Of all of them.
    """
    with connection.cursor() as cursor:
        cursor.execute(";".join(statements), parameters)
        found = [list(cursor.fetchall())]
        while cursor.nextset():
            found.append(list(cursor.fetchall()))
    return found


def one_session() -> AbstractContextManager[None]:
    """Keep what is private to a session of the server for a block, behind a pooler as well."""
    kept: AbstractContextManager[None] = connection.one_session()  # type: ignore[attr-defined]  # of our backend
    return kept
