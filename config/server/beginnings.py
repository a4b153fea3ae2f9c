"""What each serving process begins for itself: threads and connections do not outlive a fork.

The supervisor loads the application once and forks its workers from that. Whatever is begun while
the application is loaded waits here for the fork; where nothing is forked, it begins at once.
"""

from __future__ import annotations

from collections.abc import Callable

_Begin = Callable[[], object]
_waiting: list[_Begin] | None = None


def put_off_beginnings() -> None:
    """Say that what is loaded from now on is for processes that are forked later."""
    global _waiting  # noqa: PLW0603 - one per process
    _waiting = []


def in_each_process(begin: _Begin) -> None:
    """Call a function in each process that serves: now, or after the fork if one is to come."""
    if _waiting is None:
        begin()
    else:
        _waiting.append(begin)


def begin_all() -> None:
    """Call what waits, in the order in which it came; in a process that serves from now on."""
    global _waiting
    waiting, _waiting = _waiting, None
    for begin in waiting or ():
        begin()
