"""Which standbys may be read from now, and as of when (ADR 36).

A thread of each process looks at the primary and at every standby. A standby may be read from while
it is known to have replayed what the primary had written at a moment that is recent enough; the
time of its last transaction would not do, for it grows while nothing is written. A server of
another system or on another timeline is left out, whatever it has replayed: a standby that stayed
with a former primary tells a past that never was.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Final, Self

import structlog
from django.conf import settings
from django.db import DatabaseError, connections

from journal.history import SERVER, read_moment, wal_bytes

log = structlog.get_logger(__name__)

PREFIX: Final = "standby"
#: Where a standby stands. A receiver tells its timeline to members of ``pg_read_all_stats``; the
#: control file follows within a checkpoint.
STANDING: Final = f"""
SELECT pg_is_in_recovery(), split_part({SERVER}, ' ', 1),
       coalesce((SELECT received_tli FROM pg_stat_wal_receiver),
                (pg_control_recovery()).min_recovery_end_timeline),
       coalesce(pg_last_wal_replay_lsn(), '0/0')::text
"""  # noqa: S608 - constants only


@dataclass(frozen=True, slots=True, kw_only=True)
class Primary:
    """Where the primary was when it was looked at.

    Attributes:
        at: Monotonic seconds, before it was asked.
        written_bytes: End of its WAL.
        history: Name of its history.
    """

    at: float
    written_bytes: int
    history: str

    @property
    def timeline(self) -> int:
        """Number of its timeline."""
        return int(self.history.split(" ")[0], 16)

    @property
    def system(self) -> str:
        """Its system identifier."""
        return self.history.split(" ")[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """Where a standby was when it was looked at; ``replayed`` is the end of its WAL."""

    is_in_recovery: bool
    system: str
    timeline: int
    replayed: str

    @property
    def replayed_bytes(self) -> int:
        """How much WAL it had replayed."""
        return wal_bytes(self.replayed)

    @classmethod
    def of_row(cls, row: Sequence[Any]) -> Self:  # Any: columns of several types
        """Return what :data:`STANDING` told."""
        is_in_recovery, system, timeline, replayed = row
        return cls(
            is_in_recovery=is_in_recovery, system=system, timeline=timeline or 0, replayed=replayed
        )


@dataclass(slots=True)
class Known:
    """What is known of one standby.

    Attributes:
        fresh_as_of: Monotonic seconds: it has replayed all that was committed then; None if it
            must not be read from.
        replayed_bytes: End of the WAL that it has replayed.
        history: Of the primary whose WAL that is.
        reason: Why it is left out; empty if it is not.
    """

    fresh_as_of: float | None = None
    replayed_bytes: int = 0
    history: str = ""
    reason: str = "not_looked_at"


def refusal(standing: Standing, now: Primary) -> str:
    """Return why a server is no standby of the primary, however far it is; empty if it is one."""
    if not standing.is_in_recovery:
        return "not_a_standby"
    if standing.system != now.system:
        return "other_system"
    if standing.timeline != now.timeline:
        return "other_timeline"
    return ""


def judge(
    standing: Standing, samples: Sequence[Primary], *, before_bytes: int = 0
) -> tuple[float | None, str]:
    """Return as of when a standby is fresh, and why it must not be read from.

    Args:
        standing: Where it is, read after the newest sample.
        samples: Of the primary, oldest first; at least one.
        before_bytes: WAL that it had replayed before the newest sample. If the primary had not
            written as much then, a backup was put in its place, of which this is no standby.
    """
    now = samples[-1]
    if reason := refusal(standing, now):
        return None, reason
    if before_bytes > now.written_bytes:
        return None, "ahead_of_primary"
    seen = [
        sample.at
        for sample in samples
        if sample.history == now.history and sample.written_bytes <= standing.replayed_bytes
    ]
    return (seen[-1], "") if seen else (None, "behind")


@dataclass(slots=True)
class StandbyWatch:
    """The standbys of a process; safe for threads.

    Attributes:
        aliases: Of the settings' databases.
        most_lag_seconds: How old what they tell may be.
        look_seconds: Pause between looks.
        clock: Monotonic seconds.
    """

    aliases: Sequence[str]
    most_lag_seconds: float
    look_seconds: float
    clock: Callable[[], float] = time.monotonic
    _known: dict[str, Known] = field(default_factory=dict)
    _samples: deque[Primary] = field(default_factory=deque)
    _turn: count[int] = field(default_factory=count)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _thread: threading.Thread | None = None
    _looked: threading.Event = field(default_factory=threading.Event)

    def choose(
        self, *, written_bytes: int = 0, history: str = "", patience_seconds: float = 0.0
    ) -> str | None:
        """Return the alias of a standby to read from, each in turn; None if there is none.

        Args:
            written_bytes: WAL that the reader wants to see.
            history: Of the primary, where that matters.
            patience_seconds: How long to wait for the first look of a process.
        """
        self._ensure_thread()
        if patience_seconds:
            self._looked.wait(patience_seconds)
        since = self.clock() - self.most_lag_seconds
        usable = [
            alias
            for alias, known in list(self._known.items())
            if known.fresh_as_of is not None
            and known.fresh_as_of >= since
            and known.replayed_bytes >= written_bytes
            and history in {"", known.history}
        ]
        return usable[next(self._turn) % len(usable)] if usable else None

    def leave_out(self, alias: str) -> None:
        """Read no more from a standby until it was looked at anew: it failed."""
        self._note(alias, Known(reason="failed"))

    def look(self) -> None:
        """Ask the primary and then each standby where they are.

        Without an answer of the primary nothing new is known, and what is known grows old.
        """
        at = self.clock()
        try:
            moment = read_moment()
        except DatabaseError as error:
            log.warning("standby_look_failed", error=str(error).strip())
            return
        finally:
            connections["default"].close_if_unusable_or_obsolete()
        sample = Primary(at=at, written_bytes=moment.wal_bytes, history=moment.history)
        self._samples.append(sample)
        while self._samples[0].at < at - self.most_lag_seconds:
            self._samples.popleft()
        for alias in self.aliases:
            self._look_at(alias)

    def _look_at(self, alias: str) -> None:
        wrapper = connections[alias]
        try:
            with wrapper.cursor() as cursor:
                cursor.execute(STANDING)
                standing = Standing.of_row(cursor.fetchone())
        except DatabaseError as error:
            with suppress(DatabaseError):
                wrapper.close()
            log.debug("standby_does_not_answer", alias=alias, error=str(error).strip())
            self._note(alias, Known(reason="no_answer"))
            return
        before_bytes = self._known.get(alias, Known()).replayed_bytes
        fresh_as_of, reason = judge(standing, self._samples, before_bytes=before_bytes)
        self._note(
            alias,
            Known(
                fresh_as_of=fresh_as_of,
                replayed_bytes=standing.replayed_bytes,
                history=self._samples[-1].history,
                reason=reason,
            ),
        )

    def _note(self, alias: str, known: Known) -> None:
        before = self._known.get(alias, Known())
        self._known[alias] = known
        if known.reason != before.reason:
            tell = log.info if not known.reason else log.warning
            tell("standby_judged", alias=alias, reason=known.reason or "in_use")

    def _ensure_thread(self) -> None:
        if self._thread is not None and self._thread.is_alive():
            return
        with self._lock:
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._run, name="standbys", daemon=True)
                self._thread.start()

    def _run(self) -> None:
        pause = threading.Event()
        while True:
            try:
                self.look()
            except Exception:  # whatever it is, requests go to the primary meanwhile
                log.exception("standby_look_failed")
            self._looked.set()
            pause.wait(self.look_seconds)


def standby_aliases() -> list[str]:
    """Return the aliases of the standbys in the settings."""
    return [alias for alias in settings.DATABASES if alias.startswith(PREFIX)]


_current: StandbyWatch | None = None


def current_watch() -> StandbyWatch | None:
    """Return the watch of this process; None without standbys in the settings."""
    global _current  # noqa: PLW0603 - one per process
    if _current is None and (aliases := standby_aliases()):
        chosen = settings.HEADROOM.replicas
        _current = StandbyWatch(
            aliases=aliases,
            most_lag_seconds=chosen.most_lag_seconds,
            look_seconds=chosen.look_seconds,
        )
    return _current
