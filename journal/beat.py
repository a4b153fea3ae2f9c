"""Beat: several may run, the one that holds the lease sends, and each run is sent once.

When an entry was sent last stands in a row, which is written before the message is sent and only
by the holder of the lease: who takes over goes on where the other stopped, and no file is kept.
"""

from __future__ import annotations

import signal
import time
from datetime import datetime, timedelta
from typing import Any

import structlog
from celery.beat import ScheduleEntry, Scheduler
from django.conf import settings
from django.db import Error, connection

from journal.clock import TOLERANCE
from journal.leases import BEAT_LEASE, RENEWALS_PER_LEASE, HeldLease, take_lease
from journal.outages import as_unavailable
from journal.statements import fetch_rows
from journal.task_clock import beat_may_send

log = structlog.get_logger(__name__)

ENDING = (signal.SIGTERM, signal.SIGINT)
#: Longest sleep: how soon a second one notices that the first is gone, at the latest.
MOST_SECONDS = 5
DUE_AGAIN = timedelta(days=1)
#: Entries that a beat sends when it becomes the acting one, whenever they were sent before.
AT_ONCE = frozenset({"heartbeat", "placement-hosts", "sync"})
#: Entries of which one is sent so soon after, whenever they were sent before: what they look at has
#: begun to work by then.
SOON_AFTER = {"doctor": timedelta(seconds=45)}
READ = "SELECT entry, last_run_at FROM journal_beatentry"
CLAIM = """
WITH held AS (
    SELECT epoch FROM journal_lease
     WHERE name = %(name)s AND holder = %(holder)s AND epoch = %(epoch)s FOR KEY SHARE
)
INSERT INTO journal_beatentry (entry, last_run_at, epoch)
SELECT %(entry)s, clock_timestamp(), held.epoch FROM held
ON CONFLICT (entry) DO UPDATE SET last_run_at = excluded.last_run_at, epoch = excluded.epoch
RETURNING 1
"""


def end_on_signals() -> None:
    """End by SIGTERM or SIGINT wherever the process is; what is held is given back after that.

    Celery gives it back in the handler itself: that closes the connection on which an answer of the
    broker may be awaited at this moment, whose error takes the place of the end, and waits for the
    database within a statement.
    """

    def end(*_: object) -> None:
        for number in ENDING:
            signal.signal(number, signal.SIG_IGN)
        raise SystemExit

    for number in ENDING:
        signal.signal(number, end)


class LeasedScheduler(Scheduler):
    """The schedule by the database's clock, sent by one process at a time."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:  # Any: of the library
        self._lease: HeldLease | None = None
        self._renewed_at = float("-inf")
        super().__init__(*args, **kwargs)
        self.max_interval: int = min(int(self.max_interval or MOST_SECONDS), MOST_SECONDS)

    def setup_schedule(self) -> None:
        """Take the entries of all jobs, and none of the library's."""
        self.app.loader.import_default_modules()
        self.merge_inplace(self.app.conf.beat_schedule)

    def tick(self, *args: Any, **kwargs: Any) -> float:  # Any: of the library
        """Send what is due, if this process is the acting beat; return the seconds to sleep."""
        try:
            if not self._acts():
                return self.max_interval
            return float(super().tick(*args, **kwargs))
        except Error as error:
            if as_unavailable(error) is None:
                log.exception("beat_database_failed")
            connection.close()
            return self.max_interval

    def apply_entry(self, entry: ScheduleEntry, producer: Any = None) -> None:  # Any: of Celery
        """Send the task of an entry once, unless our clock is off or the lease is not ours."""
        if not beat_may_send():
            return
        if not self._claims(str(entry.name)):
            log.error("beat_lease_lost", entry=entry.name)
            self._lease = None
            return
        super().apply_entry(entry, producer=producer)

    def close(self) -> None:
        """Give the lease back, so that another takes over at once."""
        lease, self._lease = self._lease, None
        try:
            if lease is not None:
                lease.give_back()
        except Error as error:
            log.warning("beat_lease_kept", error=str(error))
        super().close()

    def _acts(self) -> bool:
        """Return whether the lease is ours, after renewing or taking it."""
        now = time.monotonic()
        if now - self._renewed_at < settings.HEADROOM.lease_seconds / RENEWALS_PER_LEASE:
            return self._lease is not None
        self._renewed_at = now
        if self._lease is not None and not self._lease.renew():
            log.error("beat_lease_lost", epoch=self._lease.epoch)
            self._lease = None
        if self._lease is None:
            self._lease = take_lease(BEAT_LEASE)
            if self._lease is None:
                self._renewed_at = float("-inf")  # asked again next time
                return False
            log.info("beat_acts", epoch=self._lease.epoch)
            self._go_on()
        return True

    def _go_on(self) -> None:
        """Continue where the beat before stopped; a moment ahead is a wrong clock's, and due."""
        known: dict[str | None, datetime] = dict(fetch_rows(READ))
        now = self.app.now()
        for entry in self.schedule.values():
            sent_at = known.get(entry.name, now)
            is_due = entry.name in AT_ONCE or sent_at > now + TOLERANCE
            if entry.name in SOON_AFTER:
                every: Any = entry.schedule  # Any: one with an interval
                sent_at = now - every.run_every + SOON_AFTER[entry.name]
            entry.last_run_at = now - DUE_AGAIN if is_due else sent_at
        self._heap = None

    def _claims(self, entry: str) -> bool:
        """Write that an entry is sent now; return whether that is for us to do."""
        lease = self._lease
        if lease is None:
            return False
        values: dict[str, str | int] = {
            "name": lease.name,
            "holder": lease.holder,
            "epoch": lease.epoch,
            "entry": entry,
        }
        return bool(fetch_rows(CLAIM, values))
