"""Statements and transactions have deadlines, by the user's defaults or per transaction."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from io import StringIO
from types import FrameType
from typing import Any

import psycopg
import pytest
from django.core.management import CommandError, call_command
from django.db import OperationalError, connection, connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper

from config.launcher.processes import wait_until
from hosts.models import Host
from journal.deadlines import user_defaults
from journal.errors import Busy
from journal.outages import as_unavailable
from tests.factories import make_host

pytestmark = pytest.mark.django_db(transaction=True)

PATIENCE_SECONDS = 30.0
SHOWN = ("statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout")


def shown(link: BaseDatabaseWrapper, name: str) -> str:
    with link.cursor() as cursor:
        cursor.execute("SELECT current_setting(%s)", [name])
        return str((cursor.fetchone() or ("",))[0])


@pytest.fixture
def session_as(settings: Any) -> Iterator[Callable[..., BaseDatabaseWrapper]]:
    """Open a session as a kind of process would."""
    opened: list[BaseDatabaseWrapper] = []

    def make(process: str, **deadlines: float) -> BaseDatabaseWrapper:
        chosen = settings.HEADROOM.deadlines.model_copy(update=deadlines)
        settings.HEADROOM = settings.HEADROOM.model_copy(
            update={"process": process, "deadlines": chosen}
        )
        opened.append(connections.create_connection("default"))
        return opened[-1]

    yield make
    for link in opened:
        link.close()


def test_a_new_session_has_the_deadlines_of_requests(
    session_as: Callable[..., BaseDatabaseWrapper],
) -> None:
    link = session_as("web")
    assert [shown(link, name) for name in SHOWN] == ["30s", "10s", "1min"]
    assert shown(link, "client_connection_check_interval") == "5s"
    assert shown(link, "jit") == "off"
    assert link.settings_dict["OPTIONS"].keys().isdisjoint({"options"})  # a pooler refuses them


@pytest.mark.parametrize(
    ("process", "expected"),
    [("worker", ["5min", "30s", "15min"]), ("command", ["0", "0", "0"])],
)
def test_others_have_their_own_in_transactions_and_alone_and_leave_none_behind(
    session_as: Callable[..., BaseDatabaseWrapper], process: str, expected: list[str]
) -> None:
    link = session_as(process)
    assert [shown(link, name) for name in SHOWN] == expected
    with link.cursor() as cursor:
        cursor.execute("SHOW statement_timeout")  # what the next client of a pooler would get
        assert cursor.fetchone() == ("30s",)
    link.set_autocommit(False)
    with link.cursor() as cursor:
        cursor.execute("SHOW statement_timeout")
        assert cursor.fetchone() == (expected[0],)
    link.rollback()
    with link.cursor() as cursor:
        cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        cursor.execute("SELECT 1")
    link.rollback()
    link.set_autocommit(True)
    with link.cursor() as cursor:
        cursor.execute("SHOW statement_timeout")
        assert cursor.fetchone() == ("30s",)


def test_statements_alone_bring_their_rows_and_counts(
    session_as: Callable[..., BaseDatabaseWrapper],
) -> None:
    link = session_as("worker")
    make_host("h1", zone="az-a")
    with link.cursor() as cursor:
        cursor.execute("SELECT name, %s FROM hosts_host WHERE name LIKE %s", ["100%", "h%"])
        assert cursor.fetchall() == [("h1", "100%")]
        cursor.execute("UPDATE hosts_host SET hypervisor_type = 'r1' WHERE name = 'h1'")
        assert cursor.rowcount == 1
        cursor.execute("SELECT '%'")
        assert cursor.fetchone() == ("%",)
        cursor.executemany("UPDATE hosts_host SET hypervisor_type = %s", [["r2"], ["r3"]])
    assert Host.objects.get().hypervisor_type == "r3"


@pytest.mark.parametrize("process", ["worker", "command"])
def test_statements_that_the_server_binds_run_alone_too(
    session_as: Callable[..., BaseDatabaseWrapper], process: str
) -> None:
    """Placement's own statements were refused: a prepared one cannot hold two commands."""
    link = session_as(process)
    make_host("h1", zone="az-a")
    link.ensure_connection()
    bound = psycopg.Cursor(link.connection)
    (watch,) = link.execute_wrappers

    def execute(sql: str, values: tuple[str, ...], *_: object) -> psycopg.Cursor[Any]:
        return bound.execute(sql.encode(), values, prepare=True)

    done = watch(
        execute, "SELECT name FROM hosts_host WHERE name = %s", ("h1",), False, {"cursor": bound}
    )
    assert done.fetchall() == [("h1",)]


def test_a_statement_past_its_deadline_is_busy(
    session_as: Callable[..., BaseDatabaseWrapper],
) -> None:
    link = session_as("worker", worker_statement_seconds=0.05)
    with pytest.raises(OperationalError) as alone, link.cursor() as cursor:
        cursor.execute("SELECT pg_sleep(30)")
    told = as_unavailable(alone.value)
    assert isinstance(told, Busy)
    assert int(told.headers["Retry-After"]) >= 1


def test_a_wait_for_a_lock_past_its_deadline_is_busy(
    session_as: Callable[..., BaseDatabaseWrapper],
) -> None:
    make_host("h1", zone="az-a")
    link = session_as("worker", worker_lock_seconds=0.05)
    with transaction.atomic():
        Host.objects.select_for_update().get()
        with pytest.raises(OperationalError) as waited, link.cursor() as cursor:
            cursor.execute("UPDATE hosts_host SET hypervisor_type = 'r1'")
    assert isinstance(as_unavailable(waited.value), Busy)


def test_rows_are_read_through_a_cursor_of_the_session_only_in_a_transaction() -> None:
    """A cursor that outlives its transaction is of a session, which a pooler gives away."""
    for number in range(5):
        make_host(f"h{number}", zone="az-a")
    open_cursors = "SELECT count(*) FROM pg_cursors WHERE name LIKE '_django_curs%%'"

    def seen_while_reading() -> int:
        rows = Host.objects.iterator(chunk_size=2)
        next(rows)
        with connection.cursor() as cursor:
            cursor.execute(open_cursors, [])
            (count,) = cursor.fetchone() or (0,)
        assert len(list(rows)) == 4
        return int(count)

    assert seen_while_reading() == 0
    with transaction.atomic():
        assert seen_while_reading() == 1


class SoftLimitError(Exception):
    """What a signal raises in a task."""


@pytest.fixture
def soft_limit() -> Iterator[Callable[[], None]]:
    """A signal like Celery's soft time limit, which comes once the statement runs."""

    def raise_it(_: int, __: FrameType | None) -> None:
        raise SoftLimitError

    before = signal.signal(signal.SIGUSR1, raise_it)

    def send() -> None:
        main = threading.main_thread().ident

        def wait_and_send() -> None:
            try:
                assert wait_until(lambda: sleepers() > 0, PATIENCE_SECONDS)
                signal.pthread_kill(main or 0, signal.SIGUSR1)
            finally:
                connection.close()

        threading.Thread(target=wait_and_send).start()

    yield send
    signal.signal(signal.SIGUSR1, before)


def sleepers() -> int:
    with connection.cursor() as cursor:
        cursor.execute(
            """
            SELECT count(*) FROM pg_stat_activity
             WHERE datname = current_database() AND pid <> pg_backend_pid()
               AND state = 'active' AND query LIKE '%pg_sleep(300)%'
            """
        )
        return int((cursor.fetchone() or (0,))[0])


def test_a_soft_time_limit_ends_the_statement_on_the_server(
    soft_limit: Callable[[], None], session_as: Callable[..., BaseDatabaseWrapper]
) -> None:
    link = session_as("worker")
    for is_alone in (True, False):
        soft_limit()
        link.set_autocommit(is_alone)
        with pytest.raises(SoftLimitError), link.cursor() as cursor:
            cursor.execute("SELECT pg_sleep(300)")
        assert sleepers() == 0
        if not is_alone:
            link.rollback()
    link.set_autocommit(True)
    with link.cursor() as cursor:  # the session is good for the next task
        cursor.execute("SELECT 7")
        assert cursor.fetchone() == (7,)


def test_command_sets_and_compares_the_defaults() -> None:
    out = StringIO()
    call_command("configure_database", "--check", stdout=out)
    assert "has the deadlines of requests" in out.getvalue()
    with connection.cursor() as cursor:
        cursor.execute("SELECT current_database()")
        (name,) = cursor.fetchone() or ("",)
        unset = psycopg.sql.SQL("ALTER ROLE CURRENT_USER IN DATABASE {} RESET statement_timeout")
        cursor.execute(unset.format(psycopg.sql.Identifier(name)))
    out = StringIO()
    with pytest.raises(CommandError):
        call_command("configure_database", "--check", stdout=out)
    assert out.getvalue() == (
        f"statement_timeout: not set, configured is {user_defaults()['statement_timeout']}\n"
    )
    call_command("configure_database", stdout=StringIO())
    call_command("configure_database", "--check", stdout=StringIO())
    with pytest.raises(CommandError):
        call_command("configure_database", "--user", "nobody here", stdout=StringIO())
