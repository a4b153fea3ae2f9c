"""What callers are told of database and broker errors, raised by the real ones."""

from __future__ import annotations

from pathlib import Path

import psycopg
import pytest
import redis
from celery import current_app
from django.db import (
    DataError,
    Error,
    IntegrityError,
    OperationalError,
    ProgrammingError,
    connection,
    transaction,
)

from journal.errors import Busy, HeadroomError, Unavailable
from journal.outages import (
    BrokerUnavailable,
    DatabaseUnavailable,
    as_unavailable,
    sqlstate_of,
)

pytestmark = pytest.mark.django_db


def raised_with(sqlstate: str) -> Error:
    """Return the error of a statement that the server answers with a state."""
    statement = f"DO $$ BEGIN RAISE EXCEPTION USING ERRCODE = '{sqlstate}'; END $$"
    with pytest.raises(Error) as caught, transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(statement)
    assert sqlstate_of(caught.value) == sqlstate
    return caught.value


@pytest.mark.parametrize(
    ("sqlstate", "kind"),
    [
        pytest.param("40001", Busy, id="serialization failure"),
        pytest.param("40P01", Busy, id="deadlock"),
        pytest.param("55P03", Busy, id="lock timeout"),
        pytest.param("57014", Busy, id="statement timeout"),
        pytest.param("25P03", Busy, id="idle in transaction"),
        pytest.param("25006", DatabaseUnavailable, id="read only standby"),
        pytest.param("08006", DatabaseUnavailable, id="connection failure"),
        pytest.param("53100", DatabaseUnavailable, id="disk full"),
        pytest.param("53300", DatabaseUnavailable, id="too many connections"),
        pytest.param("57P01", DatabaseUnavailable, id="admin shutdown"),
        pytest.param("57P02", DatabaseUnavailable, id="crash shutdown"),
        pytest.param("57P03", DatabaseUnavailable, id="cannot connect now"),
        pytest.param("58030", DatabaseUnavailable, id="input or output failed"),
    ],
)
def test_states_of_the_server_that_pass(sqlstate: str, kind: type[Unavailable]) -> None:
    told = as_unavailable(raised_with(sqlstate))
    assert type(told) is kind
    assert told.headers == {"Retry-After": str(told.retry_after_seconds)}
    assert told.retry_after_seconds >= 1
    assert told.facts == {"sqlstate": sqlstate}


@pytest.mark.parametrize("sqlstate", ["22012", "23505", "42P01", "42501", "XX000", "P0001"])
def test_defects_and_refusals_are_not_outages(sqlstate: str) -> None:
    assert as_unavailable(raised_with(sqlstate)) is None


def test_errors_of_others_are_not_outages() -> None:
    for error in (DataError("a"), IntegrityError("b"), ProgrammingError("c"), ValueError("d")):
        assert as_unavailable(error) is None


def test_a_database_that_cannot_be_reached(tmp_path: Path) -> None:
    with pytest.raises(psycopg.OperationalError) as caught:
        psycopg.connect(host=str(tmp_path), dbname="nothing", user="nobody")
    assert isinstance(as_unavailable(caught.value), DatabaseUnavailable)


@pytest.mark.django_db(transaction=True)
def test_a_session_that_ends_under_a_statement_and_one_that_is_closed() -> None:
    with pytest.raises(OperationalError) as caught, connection.cursor() as cursor:
        cursor.execute("SELECT pg_terminate_backend(pg_backend_pid())")
    assert isinstance(as_unavailable(caught.value), DatabaseUnavailable)
    connection.close()
    with connection.cursor() as cursor:
        raw = connection.connection
        assert raw is not None
        raw.close()
        with pytest.raises(Error) as closed:
            cursor.execute("SELECT 1")
    connection.close()
    assert isinstance(as_unavailable(closed.value), DatabaseUnavailable)


def test_an_error_that_was_raised_from_an_outage_is_one() -> None:
    refusal = HeadroomError("the row could not be written")
    refusal.__cause__ = raised_with("57P01")
    assert isinstance(as_unavailable(refusal), DatabaseUnavailable)
    refusal.__cause__ = raised_with("23505")
    assert as_unavailable(refusal) is None


def test_a_broker_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(redis.RedisError) as caught:
        redis.Redis.from_url(f"unix://{tmp_path}/nobody").ping()
    assert isinstance(as_unavailable(caught.value), BrokerUnavailable)
    with (
        pytest.raises(Exception, match="nobody") as unsent,
        current_app.connection(f"redis+socket://{tmp_path}/nobody") as link,
    ):
        current_app.send_task("journal.beat", connection=link, retry=False)
    assert isinstance(as_unavailable(unsent.value), BrokerUnavailable)


def test_what_was_told_already_stays() -> None:
    busy = Busy("zone az-a is being changed by another", retry_after_seconds=3)
    assert as_unavailable(busy) is busy
