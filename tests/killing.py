"""Killing a process at any of its database statements."""

from __future__ import annotations

import json
import os
import re
import signal
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, TextIO

import pytest
from django.db import connection, connections

from journal.models import Lease

MOST_STATEMENTS = 400
NEVER = 1 << 30


def die_at_statement(number: int) -> Callable[..., Any]:
    """Return an execute wrapper that kills its process just before statement ``number``."""
    seen = 0

    def wrapper(execute: Callable[..., Any], *arguments: Any) -> Any:
        nonlocal seen
        seen += 1
        if seen == number:
            os.kill(os.getpid(), signal.SIGKILL)
        return execute(*arguments)

    return wrapper


def leave_sessions_to_parent() -> None:
    """Begin with no session of the database, without ending those that the parent goes on with."""
    for one in connections.all(initialized_only=True):
        _of_parent.append(one.connection)
        one.connection = None


_of_parent: list[object] = []


def run_in_child(work: Callable[[], object], die_at: int) -> bool:
    """Run ``work`` in a forked process that dies at a statement; return whether it finished."""
    child = os.fork()
    if child == 0:
        try:
            leave_sessions_to_parent()
            with connection.execute_wrapper(die_at_statement(die_at)):
                work()
        except BaseException:  # noqa: BLE001 - the child must never return into the test runner
            os._exit(1)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        Lease.objects.all().delete()  # as after the time in which nobody renewed them
        return False
    assert os.WEXITSTATUS(status) == 0, "the work failed by itself"
    return True


def die_at_each_distinct_statement(
    work: Callable[[], None], between: Callable[[], None], *, times: int
) -> int:
    """Kill ``work`` just before each statement that it was not killed before yet, until none is.

    Statements are the same that differ in numbers only; of each the first few of a run count, as
    the same words may be said in another state.

    Args:
        between: Called after each kill, and once after the run that finished.
        times: How many of the same statement in a run are distinct.

    Returns:
        How often it was killed.
    """
    died: set[tuple[str, int]] = set()
    while len(died) < MOST_STATEMENTS:
        reading, writing = os.pipe()
        with os.fdopen(reading) as told, os.fdopen(writing, "w") as tell:
            has_finished = _run_until_new(work, died, times, tell)
            tell.close()
            between()
            if has_finished:
                return len(died)
            sql, number = json.loads(told.read())
            died.add((sql, number))
    pytest.fail(f"not finished after {MOST_STATEMENTS} kills")


def _run_until_new(
    work: Callable[[], None], died: set[tuple[str, int]], times: int, tell: TextIO
) -> bool:
    seen: Counter[str] = Counter()

    def wrapper(execute: Callable[..., Any], sql: str, *arguments: Any) -> Any:
        words = re.sub(r"\d+", "0", sql)
        seen[words] += 1
        key = (words, seen[words])
        if seen[words] <= times and key not in died:
            json.dump(key, tell)
            tell.flush()
            os.kill(os.getpid(), signal.SIGKILL)
        return execute(sql, *arguments)

    def watched() -> None:
        with connection.execute_wrapper(wrapper):
            work()

    return run_in_child(watched, NEVER)


def in_children(works: Sequence[Callable[[], None]]) -> list[bool]:
    """Run each work in a forked process, all at once; return which of them succeeded."""
    connections.close_all()
    children = []
    for work in works:
        child = os.fork()
        if child == 0:
            try:
                work()
            except BaseException:  # noqa: BLE001 - the child must never return into the test runner
                os._exit(1)
            os._exit(0)
        children.append(child)
    return [os.waitpid(child, 0)[1] == 0 for child in children]


def die_at_every_statement(
    work: Callable[[], None], state: Callable[[], tuple[object, ...]]
) -> list[tuple[object, ...]]:
    """Kill ``work`` at its first, second, ... statement until it finishes; return the states."""
    states = [state()]
    for number in range(1, MOST_STATEMENTS):
        has_finished = run_in_child(work, number)
        states.append(state())
        if has_finished:
            return states
    pytest.fail(f"not finished after {MOST_STATEMENTS} statements")
