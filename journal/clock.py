"""The one clock: what is stored, or compared with what is stored, uses the database's time.

Machines' clocks differ, and one that is a day ahead must not end what others promised.
:func:`database_now` asks the database. Processes that send and take tasks without a database
session of their own go by :class:`FollowedClock`, which looks at the database's time now and then.
"""

from __future__ import annotations

import threading
import time
from datetime import UTC, datetime, timedelta
from typing import cast

import structlog
from django.conf import settings
from django.db import DEFAULT_DB_ALIAS, Error, connection, connections

from journal.outages import as_unavailable

log = structlog.get_logger(__name__)

NOW = "SELECT clock_timestamp()"
LOOK = """
INSERT INTO journal_processclock (process, deviation_seconds, looked_at)
VALUES (%(process)s, extract(epoch FROM %(wall)s - clock_timestamp()), clock_timestamp())
ON CONFLICT (process) DO UPDATE
   SET deviation_seconds = excluded.deviation_seconds, looked_at = excluded.looked_at
RETURNING looked_at
"""
LOOK_SECONDS = 10.0
#: A stored moment that should be past may be this far ahead: the steps of two statements.
TOLERANCE = timedelta(seconds=5)


def database_now() -> datetime:
    """Return the database's time, by a statement on this thread's connection.

    It goes on within a transaction.

    Raises:
        django.db.Error: the database does not answer.
    """
    connection.close_if_health_check_failed()
    connection.ensure_connection()
    with connection.wrap_database_errors:
        row = connection.connection.execute(NOW).fetchone()
    return cast("datetime", row[0])


def is_ahead(moment: datetime, now: datetime) -> bool:
    """Return whether a stored moment that should be past was written by a clock that was ahead."""
    return moment > now + TOLERANCE


def trusted(moment: datetime | None, now: datetime) -> datetime | None:
    """Return a stored moment that should be past; None for one that a fast clock wrote."""
    return None if moment is None or is_ahead(moment, now) else moment


class FollowedClock:
    """The database's time, carried on between looks by the time that the process runs.

    The wall clock only tells how far it deviates. A look uses a session of its own, so that a
    process that forks keeps none; while the database is away the last look stands, and the wall
    clock before the first one.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._looked_at = -LOOK_SECONDS
        self._base: tuple[datetime, float] | None = None
        self._process = ""

    def follow_as(self, process: str) -> None:
        """Note the deviation under the name of a process at every look from now on."""
        with self._lock:
            if self._process != process:
                self._process, self._looked_at = process, -LOOK_SECONDS

    def now(self) -> datetime:
        """Return the database's time, to within the time that a look takes."""
        with self._lock:
            if time.monotonic() - self._looked_at >= LOOK_SECONDS:
                self._looked_at = time.monotonic()
                self._look()
            if self._base is None:
                return _wall()
            seen, at = self._base
            return seen + timedelta(seconds=time.monotonic() - at)

    def deviation(self) -> timedelta:
        """Return how far the wall clock is ahead of the database's; negative when it is behind."""
        now = self.now()
        return _wall() - now

    def forget(self) -> None:
        """Look again at the next question."""
        with self._lock:
            self._looked_at, self._base, self._process = -LOOK_SECONDS, None, ""

    def _look(self) -> None:
        session = connections.create_connection(DEFAULT_DB_ALIAS)
        try:
            with session.cursor() as cursor:
                begun, wall = time.monotonic(), _wall()
                if self._process:
                    cursor.execute(LOOK, {"process": self._process, "wall": wall})
                else:
                    cursor.execute(NOW)
                row = cursor.fetchone()
                if row is not None:
                    self._base = (row[0], begun)
        except Error as error:
            if as_unavailable(error) is None:
                log.warning("clock_not_compared", error=str(error))
        finally:
            session.close()


def is_off(deviation: timedelta) -> bool:
    """Return whether a clock deviates so far that its process must not do periodic work."""
    return abs(deviation) > timedelta(seconds=settings.HEADROOM.clock_refuse_seconds)


def is_doubtful(deviation: timedelta) -> bool:
    """Return whether a clock deviates so far that somebody should look at it."""
    return abs(deviation) > timedelta(seconds=settings.HEADROOM.clock_warn_seconds)


def _wall() -> datetime:
    return datetime.now(UTC)


followed_clock = FollowedClock()
