"""Tables that were just filled are looked at at once."""

from __future__ import annotations

import pytest
from django.db import connection

from journal.models import AuditEntry
from journal.statistics import analyze_grown_tables

pytestmark = pytest.mark.django_db
TABLE = "journal_auditentry"


def fill(count: int) -> None:
    AuditEntry.objects.create(actor="a" * 200, action="x", object_type="y")
    names = [column.column for column in AuditEntry._meta.concrete_fields if not column.primary_key]
    columns = ", ".join(names)
    with connection.cursor() as cursor:
        cursor.execute(
            f"INSERT INTO {TABLE} ({columns}) SELECT {columns}"  # noqa: S608 - constants only
            f" FROM (SELECT * FROM {TABLE} LIMIT 1) AS one, generate_series(2, %s)",
            [count],
        )


def known_rows() -> float:
    with connection.cursor() as cursor:
        cursor.execute("SELECT reltuples FROM pg_class WHERE oid = %s::regclass", [TABLE])
        ((count,),) = cursor.fetchall()
    return float(count)


def forget() -> None:
    with connection.cursor() as cursor:
        # Autovacuum, which may be at it for what other tests wrote, leaves it to us.
        cursor.execute(f"LOCK TABLE {TABLE} IN SHARE UPDATE EXCLUSIVE MODE")
        cursor.execute(
            "UPDATE pg_class SET relpages = 0, reltuples = 0 WHERE oid = %s::regclass", [TABLE]
        )


def test_table_that_was_filled_is_analyzed_and_then_left_alone() -> None:
    forget()
    fill(2000)
    assert TABLE in analyze_grown_tables()
    assert known_rows() >= 2000
    assert TABLE not in analyze_grown_tables()


def test_table_is_analyzed_again_when_it_has_doubled() -> None:
    forget()
    fill(2000)
    analyze_grown_tables()
    fill(200)
    assert TABLE not in analyze_grown_tables()
    fill(8000)
    assert TABLE in analyze_grown_tables()
