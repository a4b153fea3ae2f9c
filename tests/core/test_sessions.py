"""Sessions are lent to one thread at a time, the one given back last first."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest
from django.db import DEFAULT_DB_ALIAS, connection, connections

from core.prepared import fetch, fetch_prepared
from core.sessions import IDLE_SECONDS, Sessions, current_session

pytestmark = pytest.mark.django_db(transaction=True)
PATIENCE_SECONDS = 30.0


@pytest.fixture
def sessions() -> Iterator[Sessions]:
    made = Sessions()
    yield made
    made.close_idle(time.monotonic() + 2 * IDLE_SECONDS)
    assert len(made) == 0


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(3) as pool:
        yield pool


def backend() -> int:
    """Ask which session serves this thread, by each way that statements go."""
    ((by_name,),) = fetch_prepared("SELECT pg_backend_pid()")
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        ((by_django,),) = cursor.fetchall()
    ((by_run,),) = fetch("SELECT pg_backend_pid()")
    assert by_django == by_name == by_run
    return int(by_django)


def lent(sessions: Sessions) -> int:
    sessions.lend()
    try:
        return backend()
    finally:
        sessions.take_back()


def test_threads_that_take_turns_share_one_session(
    sessions: Sessions, threads: ThreadPoolExecutor
) -> None:
    together = Barrier(3)

    def at_once() -> int:
        sessions.lend()
        try:
            found = backend()
            together.wait(PATIENCE_SECONDS)
            return found
        finally:
            sessions.take_back()

    first = threads.submit(lent, sessions).result(PATIENCE_SECONDS)
    assert {threads.submit(lent, sessions).result(PATIENCE_SECONDS) for _ in range(6)} == {first}
    assert len(sessions) == 1
    running = [threads.submit(at_once) for _ in range(3)]
    found = {one.result(PATIENCE_SECONDS) for one in running}
    assert len(found) == 3
    assert first in found
    assert len(sessions) == 3


def test_a_thread_has_its_own_session_before_and_after(
    sessions: Sessions, threads: ThreadPoolExecutor
) -> None:
    def in_between() -> None:
        other = lent(sessions)
        sessions.lend()
        wrapper = current_session().wrapper
        assert wrapper is connections[DEFAULT_DB_ALIAS]
        sessions.take_back()
        try:
            assert current_session().wrapper is connections[DEFAULT_DB_ALIAS]
            assert connections[DEFAULT_DB_ALIAS] is not wrapper
            assert backend() != other
        finally:
            connections.close_all()

    threads.submit(in_between).result(PATIENCE_SECONDS)


def test_a_session_that_the_server_ended_is_opened_again(
    sessions: Sessions, threads: ThreadPoolExecutor
) -> None:
    first = threads.submit(lent, sessions).result(PATIENCE_SECONDS)
    fetch_prepared("SELECT pg_terminate_backend(%s::int, 5000)", [first])
    second = threads.submit(lent, sessions).result(PATIENCE_SECONDS)
    assert second != first
    assert threads.submit(lent, sessions).result(PATIENCE_SECONDS) == second
    assert len(sessions) == 1


def test_what_nobody_needed_for_long_is_closed(
    sessions: Sessions, threads: ThreadPoolExecutor
) -> None:
    first = threads.submit(lent, sessions).result(PATIENCE_SECONDS)
    sessions.close_idle(time.monotonic() + IDLE_SECONDS / 2)
    assert threads.submit(lent, sessions).result(PATIENCE_SECONDS) == first
    sessions.close_idle(time.monotonic() + 2 * IDLE_SECONDS)
    assert len(sessions) == 0
    assert threads.submit(lent, sessions).result(PATIENCE_SECONDS) != first
