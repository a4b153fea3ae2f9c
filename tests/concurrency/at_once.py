"""Work on several connections that begins at the same moment."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from django.db import connection

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
