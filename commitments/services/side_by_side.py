"""Doing the same for many projects over more than one database connection."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from queue import Empty, SimpleQueue

from django.db import connection

CONNECTIONS = 2
"""While one project is planned, another's rows are written."""

WORTH_A_CONNECTION = 100
"""Fewer projects than these are done sooner than another connection pays off."""


def refused_of(project_ids: Sequence[str], is_done: Callable[[str], bool]) -> list[str]:
    """Do some work for each project and return those for which it was refused, in order.

    The caller's thread does its share. Within a transaction it does all of it, since nobody else
    sees what that transaction wrote.

    Args:
        project_ids: The projects; no two of them need the same rows.
        is_done: Does the work for one project; false where it has to be done again.

    Raises:
        Exception: what the work raised; projects not begun by then are left out.
    """
    waiting: SimpleQueue[str] = SimpleQueue()
    for project_id in project_ids:
        waiting.put(project_id)
    if len(project_ids) < WORTH_A_CONNECTION or connection.in_atomic_block:
        refused = _work_off(waiting, is_done)
    else:
        with ThreadPoolExecutor(CONNECTIONS - 1, thread_name_prefix="project") as pool:
            others: list[Future[list[str]]] = [
                pool.submit(copy_context().run, _work_off_apart, waiting, is_done)
                for _ in range(CONNECTIONS - 1)
            ]
            refused = _work_off(waiting, is_done)
            for other in others:
                refused += other.result()
    places = {project_id: place for place, project_id in enumerate(project_ids)}
    return sorted(refused, key=places.__getitem__)


def _work_off_apart(waiting: SimpleQueue[str], is_done: Callable[[str], bool]) -> list[str]:
    try:
        return _work_off(waiting, is_done)
    finally:
        connection.close()


def _work_off(waiting: SimpleQueue[str], is_done: Callable[[str], bool]) -> list[str]:
    try:
        return [project_id for project_id in _taken_from(waiting) if not is_done(project_id)]
    finally:
        for _ in _taken_from(waiting):  # after an error the others stop as well
            pass


def _taken_from(waiting: SimpleQueue[str]) -> Iterator[str]:
    while True:
        try:
            yield waiting.get_nowait()
        except Empty:
            return
