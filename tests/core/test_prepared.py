"""Statements that a connection keeps prepared, and connections that ended while idle."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import (
    DEFAULT_DB_ALIAS,
    DataError,
    OperationalError,
    ProgrammingError,
    connection,
    connections,
    transaction,
)

from core.prepared import fetch_again, fetch_prepared, run
from journal.outages import sqlstate_of
from tests.placement.client import placement_settings

pytestmark = pytest.mark.django_db(transaction=True)


def test_values_come_back_as_what_they_are() -> None:
    sql = "SELECT %s::int, %s::text, %s::text, %s::uuid[]::text[], 50 %% 7, 1.5::float8"
    name = "00000000-0000-0000-0000-000000000001"
    row = (3, "a'b\\", None, [name], 1, 1.5)
    for _ in range(2):  # prepared, then known
        assert fetch_prepared(sql, [3, "a'b\\", None, f"{{{name}}}"]) == [row]
    with transaction.atomic():
        assert fetch_prepared(sql, [3, "a'b\\", None, f"{{{name}}}"]) == [row]


def test_without_prepared_statements_answers_are_the_same(settings: Any) -> None:
    placement_settings(settings, prepared_statements="off")
    assert fetch_prepared("SELECT %s::int", [3]) == [(3,)]
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM pg_prepared_statements WHERE name LIKE 'headroom%'")
        assert cursor.fetchone() == (0,)


@pytest.mark.parametrize(("is_pooled", "prepared"), [(False, 1), (True, 0)])
def test_statements_stay_prepared_only_where_no_pooler_stands_before_the_server(
    is_pooled: bool, prepared: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1")  # a connection that was opened just now says what it is
        assert connection.is_pooled is False  # type: ignore[attr-defined]  # of our backend
        monkeypatch.setattr(connections[DEFAULT_DB_ALIAS], "is_pooled", is_pooled)
        cursor.execute("DEALLOCATE ALL")
        statement = f"SELECT %s::int + 17{prepared}"
        assert fetch_prepared(statement, [3]) == [(173 + prepared,)]
        cursor.execute("SELECT count(*) FROM pg_prepared_statements WHERE name LIKE 'headroom%'")
        assert cursor.fetchone() == (prepared,)


def test_a_statement_that_the_server_forgot_is_prepared_again() -> None:
    assert fetch_prepared("SELECT %s::int", [3]) == [(3,)]
    assert fetch_prepared("SELECT %s::int + 1", [3]) == [(4,)]
    for number in range(3):
        run("DEALLOCATE ALL")
        assert fetch_prepared("SELECT %s::int", [4]) == [(4,)]
        assert fetch_prepared(f"SELECT %s::int + 1{number}", [4]) == [(14 + number,)]
        assert fetch_prepared("SELECT %s::int + 1", [4]) == [(5,)]


def test_a_text_that_cannot_be_stored_is_refused_before_it_is_sent() -> None:
    with pytest.raises(DataError):
        fetch_prepared("SELECT %s::text", ["a\0b"])


def test_a_failed_statement_raises_what_it_says_and_the_next_one_works() -> None:
    for _ in range(2):
        with pytest.raises(DataError) as caught:
            fetch_prepared("SELECT 1 / %s::int", [0])
        assert sqlstate_of(caught.value) == "22012"
    with pytest.raises(ProgrammingError):
        fetch_prepared("SELECT missing")
    assert fetch_prepared("SELECT 1 / %s::int", [1]) == [(1,)]


def test_a_connection_that_breaks_under_a_statement_is_told_and_replaced() -> None:
    with pytest.raises(OperationalError):
        fetch_prepared("SELECT pg_terminate_backend(pg_backend_pid())")
    assert fetch_prepared("SELECT 1") == [(1,)]


@pytest.mark.parametrize("is_alone", [True, False])
def test_named_values_of_every_kind_arrive_as_what_they_are(*, is_alone: bool) -> None:
    then, key = datetime(2026, 3, 1, 12, 30, 0, 5, tzinfo=UTC), uuid.uuid4()
    given = {
        "numbers": [1, 2],
        "texts": ['a"b', "c\\,{}", "", "NULL"],
        "nothing": [],
        "bits": b"\x00\xff\\x",
        "lasts": timedelta(days=2, seconds=3, microseconds=7),
        "then": then,
        "key": key,
        "is_it": True,
        "none": None,
    }
    sql = (
        "SELECT %(numbers)s::int[], %(texts)s::text[], %(nothing)s::text[], %(bits)s::bytea,"
        " %(lasts)s::interval, %(then)s::timestamptz, %(key)s::uuid, %(is_it)s::bool,"
        " %(none)s::int, %(numbers)s::int[], 7 %% 4"
    )
    if is_alone:
        (row,) = fetch_prepared(sql, given)
    else:
        with transaction.atomic():
            (row,) = fetch_prepared(sql, given)
    assert row == (*given.values(), [1, 2], 3)


@contextmanager
def another_session() -> Iterator[Any]:  # Any: a cursor
    other = connections.create_connection(DEFAULT_DB_ALIAS)
    try:
        with other.cursor() as cursor:
            yield cursor
    finally:
        other.close()


def test_a_connection_is_looked_at_without_asking_the_server() -> None:
    run("SELECT 'the last one'")
    pid = connection.connection.info.backend_pid
    assert connection.is_usable()
    with another_session() as cursor:
        cursor.execute("SELECT query FROM pg_stat_activity WHERE pid = %s", [pid])
        assert cursor.fetchone() == ("SELECT 'the last one'",)
        cursor.execute("SELECT pg_terminate_backend(%s, 5000)", [pid])
    assert not connection.is_usable()
    connection.close()
    assert fetch_prepared("SELECT 1") == [(1,)]


def test_a_connection_on_which_something_failed_is_asked() -> None:
    run("SELECT 'the last one'")
    pid = connection.connection.info.backend_pid
    connection.errors_occurred = True
    try:
        assert connection.is_usable()
        with another_session() as cursor:
            cursor.execute("SELECT query FROM pg_stat_activity WHERE pid = %s", [pid])
            assert cursor.fetchone() == ("SELECT 1",)
    finally:
        connection.errors_occurred = False


def test_a_query_whose_session_was_lost_is_asked_again() -> None:
    ((before,),) = fetch_again("SELECT pg_backend_pid()")
    with another_session() as cursor:
        cursor.execute("SELECT pg_terminate_backend(%s, 5000)", [before])
    ((after,),) = fetch_again("SELECT pg_backend_pid()")
    assert after != before
    with pytest.raises(DataError):  # the session is there: nothing is asked twice
        fetch_again("SELECT 1 / %s::int", [0])
    with transaction.atomic():
        ((within,),) = fetch_again("SELECT pg_backend_pid()")
        with another_session() as cursor:
            cursor.execute("SELECT pg_terminate_backend(%s, 5000)", [within])
        with pytest.raises(OperationalError):  # what the transaction saw before is gone
            fetch_again("SELECT pg_backend_pid()")
        connection.close()
    assert fetch_again("SELECT 1") == [(1,)]
