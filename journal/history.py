"""Which history of the database a process goes by, and when it has to read everything anew.

Readers that follow changes remember a :class:`Moment` and ask what came after it. That answers
nothing once the server is another one: a standby that was promoted while it was behind, a backup
in the primary's place. Its transactions bear numbers that the reader has seen already, and its rows
keys that meant others. So each read says, in the same statement, of which history it is.

A history is a database of one run of one server on one timeline: while these stay, the server
never goes back. The timeline comes from the name of the current WAL file, since the control file
tells the former one for a while after a promotion. The system identifier, which a server reads from
a file, is kept in a setting of its session, so that a pooler that hands out sessions of several
servers makes no difference. The start of the server tells a backup that was put in the primary's
place with the timeline it had. The path of a catalogue has the key of the database in it, which
tells one that was made anew. Every role may ask all of this. A standby is refused; on which
timeline it is, its WAL receiver tells for the log, to members of ``pg_read_all_stats``.
"""

from __future__ import annotations

import threading
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Final

import structlog
from celery.signals import task_prerun
from django.contrib.contenttypes.models import ContentType
from django.core.signals import request_started
from django.db import DEFAULT_DB_ALIAS, DatabaseError, OperationalError, connection, connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.signals import connection_created

from journal.counters import REFUSED_SERVERS, RELOAD_REASONS, RELOADS
from journal.statements import fetch_value

log = structlog.get_logger(__name__)

STANDBY: Final = "standby"
# What stays while a session lasts. Reading the system identifier takes longer than all the rest.
SERVER: Final = """
coalesce(nullif(current_setting('headroom.server', true), ''),
         set_config('headroom.server',
                    concat_ws(' ', (pg_control_system()).system_identifier,
                              extract(epoch FROM pg_postmaster_start_time()),
                              regexp_replace(pg_relation_filepath('pg_class'), '/[0-9]+$', '')),
                    false))
"""

#: SQL expression of the present moment, for the statement that reads the changes; a text that
#: :func:`moment_of` takes.
MOMENT: Final = f"""
(pg_current_snapshot()::text
 || CASE WHEN pg_current_xact_id_if_assigned() IS NULL THEN ' 0 ' ELSE ' 1 ' END
 || CASE WHEN pg_is_in_recovery() THEN '0/0 {STANDBY} '
         ELSE pg_current_wal_insert_lsn() || ' '
              || left(pg_walfile_name(pg_current_wal_insert_lsn()), 8) || ' ' END
 || {SERVER})
"""
NOW: Final = f"SELECT {MOMENT}"
NOW_AND_WHERE: Final = f"SELECT {MOMENT}, pg_backend_pid()"
RECEIVED_TIMELINE: Final = "SELECT received_tli FROM pg_stat_wal_receiver"


def wal_bytes(position: str) -> int:
    """Return how much WAL a ``pg_lsn`` is the end of.

    Raises:
        ValueError: it is none.
    """
    high, low = position.split("/")
    return int(high, 16) << 32 | int(low, 16)


class WrongServer(OperationalError):  # noqa: N818 - a state of the system, not a defect
    """The session leads to a server that must not be believed: a standby, or a former primary."""


class NotFollowed(WrongServer):
    """A standby answers this thread on purpose, where changes are not followed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """A point in the history of the database.

    Attributes:
        snapshot: Text of the ``pg_snapshot``: which transactions are visible.
        has_written: Whether the asking transaction has written; it then sees what others do not.
        wal: End of the WAL that was written until then, as ``pg_lsn`` prints it; never falls
            within a history.
        history: Names timeline, system, run of the server and database.
    """

    snapshot: str
    has_written: bool = False
    wal: str = "0/0"
    history: str = ""

    @property
    def xmin(self) -> int:
        """Every transaction with a lower id had ended."""
        return int(self.snapshot.partition(":")[0])

    @property
    def wal_bytes(self) -> int:
        """How much WAL the server had written."""
        return wal_bytes(self.wal)


@dataclass(frozen=True, slots=True, kw_only=True)
class AtStandby:
    """A standby that answers a thread for a while (:mod:`journal.standby`).

    Attributes:
        primary: What the primary told before; None if changes must not be followed there.
        replayed: End of the WAL that the standby had replayed before it was asked, as ``pg_lsn``.
    """

    primary: Moment | None = None
    replayed: str = "0/0"

    def moment_of(self, text: str) -> Moment:
        """Return the moment that the standby told: of the primary's history, which it replays.

        Its snapshots name no transaction that runs, and show some of them as ended. What is sure is
        that every one below their ``xmin`` had ended: what began later is looked at again.

        Raises:
            NotFollowed: changes must not be followed there.
            WrongServer: it is no standby any more, or one of another database.
        """
        if self.primary is None:
            raise NotFollowed("changes are followed on the primary, and a standby answers here")
        snapshot, _, _, history = text.split(" ", 3)
        role, system, _, database = history.split(" ", 3)
        _, primary_system, _, primary_database = self.primary.history.split(" ", 3)
        if (role, system, database) != (STANDBY, primary_system, primary_database):
            raise WrongServer(f"the server that was read from is no standby of ours: {history}")
        xmin, _, _ = snapshot.partition(":")
        return Moment(snapshot=f"{xmin}:{xmin}:", wal=self.replayed, history=self.primary.history)


#: The standby that answers this thread; None if the primary does.
at_standby: ContextVar[AtStandby | None] = ContextVar("at_standby", default=None)


def check_is_followed() -> None:
    """Check that what follows changes may go on here.

    While a standby answers a view, prepared statements go to the primary all the same: what changed
    since a position would be told by the one, and what it is now by the other, which may not know.

    Raises:
        NotFollowed: a standby answers this thread.
    """
    if at_standby.get() is not None:
        raise NotFollowed("changes are followed on the primary, and a standby answers here")


def moment_of(text: str) -> Moment:
    """Return the moment that :data:`MOMENT` told on this thread's connection.

    Raises:
        NotFollowed: a standby answers this thread, and changes must not be followed there.
        WrongServer: caches must not be read from that server; the connection was closed.
    """
    there = at_standby.get()
    if there is not None:
        return there.moment_of(text)
    snapshot, written, wal, history = text.split(" ", 3)
    if history != _course.current:
        _course.admit(history, connection)
    return Moment(snapshot=snapshot, has_written=written == "1", wal=wal, history=history)


def read_moment() -> Moment:
    """Return the present moment.

    Raises:
        WrongServer: the session leads to a server that must not be believed.
    """
    return moment_of(fetch_value(NOW))


def is_continued(known: Moment, now: Moment, *, reader: str) -> bool:
    """Return whether the changes since a moment lead to another; if not, everything is read anew.

    Args:
        known: Of the last read.
        now: Of this read.
        reader: Who asks, one of :data:`journal.counters.READERS`.
    """
    if now.history == known.history and (now.wal == known.wal or now.wal_bytes >= known.wal_bytes):
        return True
    reason = _reason(known.history, now.history)
    RELOADS.labels(reader=reader, reason=reason).inc()
    log.warning(
        "database_history_changed",
        reader=reader,
        reason=reason,
        before=known.history,
        after=now.history,
        wal_behind_bytes=max(0, known.wal_bytes - now.wal_bytes),
    )
    return False


def may_store(known: Moment, *, reader: str) -> bool:
    """Return whether a moment may be stored now, as a position to go on from.

    For the transaction that stores it: a run of several transactions may end on another server
    than it began on, to which the moment means nothing.
    """
    return is_continued(known, read_moment(), reader=reader)


def _reason(before: str, after: str) -> str:
    """Return which part of the names of two histories tells them apart, the weightiest one."""
    parts = ("other_timeline", "other_system", "restarted", "other_database")
    names = zip(parts, before.split(" "), after.split(" "), strict=False)
    differing = {part for part, one, other in names if one != other}
    return next((reason for reason in RELOAD_REASONS if reason in differing), "behind")


def _is_promoted(before: str, after: str) -> bool:
    """Return whether a history goes on where another one of the system was left."""
    (timeline, system, *_), (other_timeline, other_system, *_) = before.split(" "), after.split(" ")
    return system == other_system and int(other_timeline, 16) > int(timeline, 16)


class _Course:
    """The histories that this process went through; safe for threads.

    A server that another of the system took over from is not believed any more: sessions that still
    lead there are closed, those of other threads when they next begin a request or a task. What is
    left is one run of one server, so a backup that is put in its place is another.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._left: frozenset[str] = frozenset()
        self.current = ""

    def admit(self, history: str, wrapper: BaseDatabaseWrapper) -> None:
        """Go by a history from now on.

        Raises:
            WrongServer: it must not be believed; the connection was closed.
        """
        if history.startswith(STANDBY):
            _refuse(wrapper, history, "standby")
        with self._lock:
            is_left = history in self._left
            if not is_left and history != self.current:
                if self.current and _is_promoted(self.current, history):
                    self._left |= {self.current}
                self.current = history
                ContentType.objects.clear_cache()  # its keys are of the former history
        if is_left:
            _refuse(wrapper, history, "former_primary")

    def close_left(self, wrapper: BaseDatabaseWrapper) -> None:
        """Close a connection to a server that another one took over from."""
        if self._left and getattr(wrapper, "history", "") in self._left:
            if wrapper.in_atomic_block:
                return
            REFUSED_SERVERS.labels(reason="former_primary").inc()
            wrapper.close()


def _refuse(wrapper: BaseDatabaseWrapper, history: str, reason: str) -> None:
    REFUSED_SERVERS.labels(reason=reason).inc()
    received = _received_timeline(wrapper) if reason == "standby" else None
    log.error("database_server_refused", reason=reason, history=history, received_timeline=received)
    wrapper.close()
    raise WrongServer(f"the session leads to a server that is not the primary: {reason}")


def _received_timeline(wrapper: BaseDatabaseWrapper) -> int | None:
    """Return the timeline that a standby receives; None if nothing, or not for our eyes."""
    try:
        with wrapper.cursor() as cursor:
            cursor.execute(RECEIVED_TIMELINE)
            row = cursor.fetchone()
    except DatabaseError:
        return None
    return row[0] if row else None


_course = _Course()


def close_left_connection(wrapper: BaseDatabaseWrapper) -> None:
    """Close a connection that leads to a server that another one took over from."""
    _course.close_left(wrapper)


def _close_left_of_thread(**_: object) -> None:
    _course.close_left(connections[DEFAULT_DB_ALIAS])


def _look_at_new(*, connection: BaseDatabaseWrapper, **_: object) -> None:
    """Ask a new session where it leads, and whether a pooler stands before the server.

    A pooler tells a process of its own making when the connection is opened.
    """
    if connection.alias != DEFAULT_DB_ALIAS:
        return
    with connection.cursor() as cursor:
        cursor.execute(NOW_AND_WHERE)
        ((moment, process),) = cursor.fetchall()
    history = str(moment).split(" ", 3)[3]
    _course.admit(history, connection)
    connection.history = history  # type: ignore[attr-defined]  # ours, read by close_left
    told = connection.connection.info.backend_pid
    connection.is_pooled = told != process  # type: ignore[attr-defined]  # ours, of the backend


def watch_connections() -> None:
    """Look at every new session of this process, and end those that must not go on."""
    connection_created.connect(_look_at_new, dispatch_uid="journal.history")
    for signal in (request_started, task_prerun):
        signal.connect(_close_left_of_thread, dispatch_uid="journal.history")
