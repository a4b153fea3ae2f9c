"""Work on several connections that begins at the same moment."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from django.db import connection, connections

CONNECTIONS = 16


def all_at_once(job: Callable[[int], Any], count: int = CONNECTIONS) -> list[Any]:
    """Run a job in threads that start together, each with its own connection."""
    barrier = threading.Barrier(count)
    results: list[Any] = [None] * count

    def run(number: int) -> None:
        try:
            connection.ensure_connection()
            barrier.wait(timeout=30)
            results[number] = job(number)
        except Exception as error:  # noqa: BLE001 - the test looks at it
            results[number] = error
        finally:
            connection.close()

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=120)
    return results


def wait_for_a_blocked_session() -> None:
    """Return once another session waits for a lock of this one."""
    mine = """
        SELECT EXISTS (SELECT FROM pg_locks
                        WHERE NOT granted AND pg_backend_pid() = ANY (pg_blocking_pids(pid)))
    """
    with connection.cursor() as cursor:
        for _ in range(20_000):
            cursor.execute(mine)
            if (cursor.fetchone() or (False,))[0]:
                return
    message = "nobody waits"
    raise AssertionError(message)


class Sessions(ThreadPoolExecutor):
    """Threads with a session of the database each, which goes on from one job to the next.

    A session of its own for each job would take longer than most jobs, and keep them apart.
    """

    def __exit__(self, *about: object) -> None:
        """End the sessions, each in its thread: as many jobs as threads, which wait for all."""
        all_are_there = threading.Barrier(self._max_workers)
        for _ in range(self._max_workers):
            self.submit(_end_session, all_are_there)
        self.shutdown()


def _end_session(all_are_there: threading.Barrier) -> None:
    try:
        all_are_there.wait(timeout=120)
    finally:
        connections.close_all()
