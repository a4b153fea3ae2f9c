"""Killing a process at any of its database statements."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from django.db import connection, connections

from journal.models import Lease

MOST_STATEMENTS = 400


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


def run_in_child(work: Callable[[], object], die_at: int) -> bool:
    """Run ``work`` in a forked process that dies at a statement; return whether it finished."""
    connections.close_all()
    child = os.fork()
    if child == 0:
        try:
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
