"""Rows of statements, one at a time or several in one round trip."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from django.db import connection

Row = tuple[Any, ...]  # Any: columns of several types


def fetch_rows(statement: str, parameters: Mapping[str, Any]) -> list[Row]:
    """Return the rows of a statement."""
    with connection.cursor() as cursor:
        cursor.execute(statement, parameters)
        return list(cursor.fetchall())


def fetch_together(statements: Sequence[str], parameters: Mapping[str, Any]) -> list[list[Row]]:
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
