"""A session that a run keeps though a pooler deals sessions out, transaction by transaction."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from django.db import DEFAULT_DB_ALIAS, ProgrammingError, connection, connections, transaction
from psycopg.pq import TransactionStatus

from core.changes import has_one_snapshot, one_snapshot
from journal.models import Heartbeat
from journal.statements import execute, fetch_value, one_session
from tests.e2e.processes import database_url

pytestmark = pytest.mark.django_db(transaction=True)

MY_SESSION = "SELECT pg_backend_pid()"


@pytest.fixture
def _pooled(monkeypatch: pytest.MonkeyPatch) -> None:
    connection.ensure_connection()
    monkeypatch.setattr(connections[DEFAULT_DB_ALIAS], "is_pooled", True)


@pytest.fixture
def other() -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(database_url(), autocommit=True) as link:
        yield link


def beat(name: str) -> None:
    execute("INSERT INTO journal_heartbeat (name, beaten_at) VALUES (%s, now())", [name])


def status() -> TransactionStatus:
    return TransactionStatus(connection.connection.info.transaction_status)


def names(link: psycopg.Connection[Any]) -> set[str]:
    """Return what others see."""
    return {name for (name,) in link.execute("SELECT name FROM journal_heartbeat").fetchall()}


@pytest.mark.usefixtures("_pooled")
class TestBehindAPooler:
    def test_the_session_is_in_a_transaction_whenever_the_pooler_could_take_it(self) -> None:
        with one_session():
            found = {status()}
            execute("SELECT 1")
            found.add(status())
            with transaction.atomic(durable=True):
                execute("SELECT 1")
            found.add(status())
            with pytest.raises(ProgrammingError):
                execute("SELECT nothing")
            found.add(status())
            with transaction.atomic():
                execute("SELECT 1")
                transaction.set_rollback(True)
            assert found | {status()} == {TransactionStatus.INTRANS}
        assert status() == TransactionStatus.IDLE
        assert connection.get_autocommit()

    def test_what_is_committed_and_what_is_not_is_the_same_as_elsewhere(
        self, other: psycopg.Connection[Any]
    ) -> None:
        with one_session():
            beat("alone")
            assert names(other) == {"alone"}
            with transaction.atomic(durable=True):
                beat("together")
                assert names(other) == {"alone"}
            assert names(other) == {"alone", "together"}
            with transaction.atomic():
                beat("taken back")
                transaction.set_rollback(True)
            with pytest.raises(ProgrammingError):
                execute("INSERT INTO journal_heartbeat (nothing) VALUES (1)")
            beat("after")
        beat("outside")
        assert names(other) == {"alone", "together", "after", "outside"}
        assert Heartbeat.objects.count() == 4

    def test_a_transaction_begins_with_nothing_of_the_one_before(self) -> None:
        with one_session():
            with one_snapshot():
                assert has_one_snapshot()
            with transaction.atomic():
                assert not has_one_snapshot()
                assert fetch_value("SHOW transaction_read_only") == "off"
            assert fetch_value("SHOW transaction_isolation") == "read committed"

    def test_temporary_tables_stay_to_its_end(self) -> None:
        with one_session():
            execute("CREATE TEMPORARY TABLE stage_test (id bigint)")
            with transaction.atomic():
                execute("INSERT INTO stage_test VALUES (1)")
            with pytest.raises(ProgrammingError):
                execute("SELECT nothing")
            assert fetch_value("SELECT count(*) FROM stage_test") == 1
            execute("DROP TABLE stage_test")

    def test_a_connection_that_is_lost_ends_the_run_and_not_the_next_one(
        self, other: psycopg.Connection[Any]
    ) -> None:
        def run() -> None:
            with one_session():
                other.execute("SELECT pg_terminate_backend(%s)", [fetch_value(MY_SESSION)])
                execute("SELECT 1")

        with pytest.raises(Exception, match=r"terminat|closed"):
            run()
        connection.close_if_unusable_or_obsolete()
        assert fetch_value("SELECT 1") == 1
        assert status() == TransactionStatus.IDLE


def test_without_a_pooler_nothing_is_different() -> None:
    with one_session():
        execute("SELECT 1")
        assert status() == TransactionStatus.IDLE
