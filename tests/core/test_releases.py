"""Releases: which is newer, and what an older one leaves alone. Beside each other: tests/e2e."""

from __future__ import annotations

from collections.abc import Iterator
from io import StringIO
from typing import Any

import psycopg
import pytest
from django.core.management import CommandError, call_command
from django.db import connection, transaction
from django.db.migrations.recorder import MigrationRecorder

from core.releases import newer_version, newest_version, own_version, parsed
from core.sql import apply_sql, unapplied_sql
from journal.statements import execute, fetch_row, fetch_value
from tests.core.test_sql import ONE, asked, files
from tests.e2e.processes import database_url

NEXT = f"{own_version()}.1"


@pytest.mark.parametrize(
    ("older", "newer"), [("0.9.0", "0.10.0"), ("0.2.0", "0.2.0.1"), ("0.2.0.9", "0.2.0.10")]
)
def test_versions_are_compared_as_numbers(older: str, newer: str) -> None:
    assert parsed(older) < parsed(newer)


@pytest.mark.django_db
class TestOlderRelease:
    @pytest.fixture(autouse=True)
    def _migrated_by_the_next(self) -> None:
        MigrationRecorder(connection).record_applied("headroom", NEXT)
        with connection.cursor() as cursor:
            cursor.execute("COMMENT ON FUNCTION placement_lock_consumers IS 'headroom the next'")

    def test_functions_of_the_newer_one_are_enough_and_stay(self) -> None:
        apply_sql(files(ONE))  # nobody takes away what only the newer one has, or adds
        assert (newer_version(), unapplied_sql()) == (NEXT, "")
        assert asked("SELECT obj_description('placement_lock_consumers'::regproc, 'pg_proc')") == [
            "headroom the next"
        ]
        assert asked("SELECT count(*) FROM pg_proc WHERE proname = 'one'") == [0]

    def test_migrate_says_so(self) -> None:
        said = StringIO()
        call_command("migrate", stdout=said)
        assert f"Release {NEXT} has migrated this database" in said.getvalue()
        assert newest_version() == NEXT

    def test_once_it_is_the_newest_its_own_are_missed(self) -> None:
        MigrationRecorder(connection).record_unapplied("headroom", NEXT)
        assert unapplied_sql() == "1 SQL files are not applied"


@pytest.mark.django_db
def test_migrate_notes_the_version() -> None:
    assert newest_version() == own_version()


#: A trigger of ours whose text is said to be of before.
OUTDATED = "COMMENT ON TRIGGER {} ON {} IS 'headroom of before'"
OURS = """
SELECT tgname, relname FROM pg_trigger AS one JOIN pg_class AS place ON place.oid = tgrelid
 WHERE obj_description(one.oid, 'pg_trigger') LIKE 'headroom %' ORDER BY 1, 2 LIMIT 1
"""


@pytest.fixture
def writer(settings: Any) -> Iterator[psycopg.Connection[Any]]:  # Any: rows of every shape
    """Somebody who writes a table whose trigger a migration wants to replace."""
    chosen = settings.HEADROOM.deadlines.model_copy(update={"migration_lock_seconds": 0.05})
    settings.HEADROOM = settings.HEADROOM.model_copy(update={"deadlines": chosen})
    trigger, table = fetch_row(OURS)
    execute(OUTDATED.format(trigger, table))
    with psycopg.connect(database_url()) as link:
        link.execute(f"LOCK TABLE {table} IN ROW EXCLUSIVE MODE")
        yield link
    call_command("migrate", verbosity=0)


class Listener(StringIO):
    """Lets a writer end as soon as it is told that somebody waits."""

    def __init__(self, writer: psycopg.Connection[Any]) -> None:
        super().__init__()
        self.writer = writer

    def write(self, text: str) -> int:
        if "lock timeout: again in" in text:
            self.writer.rollback()
        return super().write(text)


@pytest.mark.django_db(transaction=True)
def test_a_lock_that_is_not_free_is_asked_for_again(writer: psycopg.Connection[Any]) -> None:
    said = Listener(writer)
    call_command("migrate", stdout=said)
    assert "again in" in said.getvalue()
    assert unapplied_sql() == ""


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("writer")
def test_a_lock_that_does_not_become_free_ends_the_command(settings: Any) -> None:
    chosen = settings.HEADROOM.deadlines.model_copy(update={"migration_patience_seconds": 0})
    settings.HEADROOM = settings.HEADROOM.model_copy(update={"deadlines": chosen})
    with pytest.raises(CommandError, match=r"lock timeout.*migrate again goes on"):
        call_command("migrate", verbosity=0)
    assert unapplied_sql() == "1 SQL files are not applied"


@pytest.mark.django_db(transaction=True)
def test_the_limit_ends_with_the_migration() -> None:
    def limit() -> object:
        with transaction.atomic():
            return fetch_value("SHOW lock_timeout")

    usual = limit()
    with connection.lock_limit(0.05):  # type: ignore[attr-defined]  # of our backend
        assert limit() == "50ms"
        connection.close()
        assert limit() == "50ms"
    assert limit() == usual
