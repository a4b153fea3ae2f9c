"""Database sessions of a web server: lent to each request, the one given back last first.

The server's threads take requests in turn. If each had a session of its own, these would take
turns as well, and what PostgreSQL keeps for each of them (plans, catalogues) would be in no cache
of the processor when its turn comes. So there are as many as requests that ran at once, and a
process that answers one after the other has one.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict, deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final

from django.db import DEFAULT_DB_ALIAS, connections

#: How long a session stays that no request needed.
IDLE_SECONDS: Final = 600.0


class Session:
    """A connection of Django's, and what is kept for as long as it stays.

    Attributes:
        wrapper: Django's side of it; opens it when it is used first, and again when it was lost.
        kept: What :mod:`core.prepared` keeps of it.
        given_back_at: Monotonic seconds.
    """

    __slots__ = ("given_back_at", "kept", "wrapper")

    def __init__(self, wrapper: Any) -> None:  # Any: what Django makes of each backend
        self.wrapper = wrapper
        self.kept: Any = None  # Any: of the module above
        self.given_back_at = 0.0


class _Local(threading.local):
    session: Session | None = None


_local = _Local()


def current_session() -> Session:
    """Return the session that this thread was lent, else its own.

    Finding Django's connection each time is not free.
    """
    session = _local.session
    if session is None:
        session = _local.session = Session(connections[DEFAULT_DB_ALIAS])
    return session


_elsewhere: Final[defaultdict[str, deque[Session]]] = defaultdict(deque)


@contextmanager
def session_of(alias: str) -> Iterator[Any]:  # Any: as a session's wrapper
    """Lend this thread a session of another server for prepared statements; yield its wrapper.

    A process has as many as threads ever had one at once, for as long as it lives.
    """
    own, idle = current_session(), _elsewhere[alias]
    try:
        there = idle.pop()
    except IndexError:
        there = _shared_session(alias)
    _local.session = there
    try:
        yield there.wrapper
    finally:
        _local.session = own
        idle.append(there)


def _shared_session(alias: str) -> Session:
    wrapper = connections.create_connection(alias)
    wrapper.inc_thread_sharing()  # one thread after the other, never two at once
    return Session(wrapper)


class Sessions:
    """The sessions of a process that no request has; safe for threads."""

    def __init__(self) -> None:
        self._idle: deque[Session] = deque()  # the one given back last stands last

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self._idle)

    def lend(self) -> None:
        """Make a session that of this thread, until it is given back."""
        try:
            session = self._idle.pop()
        except IndexError:
            session = _shared_session(DEFAULT_DB_ALIAS)
        _local.session = session
        connections[DEFAULT_DB_ALIAS] = session.wrapper

    def take_back(self) -> None:
        """Take the session of this thread back, which has none afterwards."""
        session, _local.session = _local.session, None
        del connections[DEFAULT_DB_ALIAS]
        if session is not None:
            session.given_back_at = time.monotonic()
            self._idle.append(session)

    def close_idle(self, now: float) -> None:
        """Close the sessions that were not needed for long; one thread calls this."""
        with suppress(IndexError):  # none is left, or the last one was lent meanwhile
            while now - self._idle[0].given_back_at > IDLE_SECONDS:
                self._idle.popleft().wrapper.close()
