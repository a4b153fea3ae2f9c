"""Following changes on a standby: what a process keeps is read there, and is no older (ADR 36).

The primary tells how much it has written, a standby answers once it has replayed that, and the
primary does where none has in time. What a standby tells is of the primary's history while it is in
recovery, of the same system and on the same timeline. Its positions are those of
:class:`journal.history.AtStandby`, so a follower may go from each server to any other.
"""

from __future__ import annotations

import select
import time
from collections.abc import Callable
from typing import Any, Final, TypeVar

from django.db import DatabaseError, OperationalError
from psycopg.pq import ExecStatus

from core.prepared import fetch_again
from core.sessions import session_of
from journal.counters import READS
from journal.history import NOW, AtStandby, Moment, WrongServer, moment_of
from journal.standby.asking import answers, is_reading_standby, note_failure, reading_from
from journal.standby.watch import STANDING, Primary, Standing, current_watch, refusal

Value = TypeVar("Value")
#: Between looks at how far a standby is: the first and the longest, in seconds.
SHORTEST_PAUSE: Final = 0.0005
LONGEST_PAUSE: Final = 0.004
#: How long a look may take in any case, in seconds.
LEAST_SECONDS: Final = 0.01
#: How long nobody waits for a standby that was late, in seconds.
SPARED_SECONDS: Final = 1.0

_late_until: Final[dict[str, float]] = {}


def follow_there(
    read: Callable[[], Value],
    *,
    reader: str,
    within_seconds: float,
    patience_seconds: float = 0.0,
) -> Value | None:
    """Return what a standby tells that has all that was committed before the call.

    While ``read`` runs, this thread's statements go there, prepared ones as well, and moments are
    those of the standby. It must write nothing, and follow nothing but what it brings forward.

    Args:
        read: Reads, once the standby is that far.
        reader: Who asks, a label of :data:`journal.counters.READS`.
        within_seconds: How long to wait for it.
        patience_seconds: How long to wait until the standbys of a new process are looked at.

    Returns:
        None if there is none, it is late or it failed: ask the primary.
    """
    watch = current_watch()
    if watch is None or is_reading_standby():
        return None
    now = moment_of(fetch_again(NOW)[0][0])
    alias = watch.choose(history=now.history, patience_seconds=patience_seconds)
    if alias is None or _late_until.get(alias, 0.0) > time.monotonic():
        READS.labels(reader=reader, answered_by="primary").inc()
        return None
    with session_of(alias) as wrapper:
        try:
            replayed = _replayed(wrapper, now, within_seconds)
            if not replayed:
                _late_until[alias] = time.monotonic() + SPARED_SECONDS
                READS.labels(reader=reader, answered_by="primary").inc()
                return None
            with reading_from(wrapper, AtStandby(primary=now, replayed=replayed)):
                value = read()
        except DatabaseError as error:
            is_there = answers(wrapper)
            note_failure(watch, alias, reader=reader, error=error, is_there=is_there)
            return None
    READS.labels(reader=reader, answered_by="standby").inc()
    return value


def _replayed(wrapper: Any, now: Moment, within_seconds: float) -> str:  # Any: Django's side
    """Return how much a standby has replayed once that is enough; empty if it is late.

    Raises:
        WrongServer: it is no standby of the primary.
        OperationalError: it does not answer, or not in time.
    """
    wrapper.ensure_connection()
    primary = Primary(at=0, written_bytes=now.wal_bytes, history=now.history)
    ends_at, pause = time.monotonic() + within_seconds, SHORTEST_PAUSE
    while True:
        standing = _standing(wrapper, max(ends_at, time.monotonic() + LEAST_SECONDS))
        if reason := refusal(standing, primary):
            raise WrongServer(f"the standby must not be read from: {reason}")
        if standing.replayed_bytes >= primary.written_bytes:
            return standing.replayed
        if time.monotonic() + pause > ends_at:
            return ""
        time.sleep(pause)
        pause = min(2 * pause, LONGEST_PAUSE)


def _standing(wrapper: Any, ends_at: float) -> Standing:  # Any: as above
    """Ask a standby where it stands; the driver would wait for ever for one that is frozen.

    Raises:
        OperationalError: it does not answer, or not in time; the session is closed.
    """
    pgconn = wrapper.connection.pgconn
    answer = select.poll()
    answer.register(pgconn.socket, select.POLLIN)
    with wrapper.wrap_database_errors:
        pgconn.send_query(STANDING.encode())
        while pgconn.is_busy():
            if not answer.poll(max(0.0, ends_at - time.monotonic()) * 1000):
                wrapper.close()
                raise OperationalError("the standby does not answer in time")
            pgconn.consume_input()
        result = pgconn.get_result()
        while pgconn.get_result() is not None:
            pass
    if result is None or result.status != ExecStatus.TUPLES_OK:
        raise OperationalError("the standby does not tell where it is")
    in_recovery, system, timeline, replayed = (
        (result.get_value(0, column) or b"").decode() for column in range(result.nfields)
    )
    return Standing.of_row((in_recovery == "t", system, int(timeline or 0), replayed))
