"""Leases: who may do what outlives a transaction, as rows and by the database's time.

A session-level lock of PostgreSQL is of a server session, which a pooler hands to the next client
after each transaction, so none is taken anywhere. A lease is a row with its holder, its end and an
epoch that grows whenever it changes hands. The holder's process renews it from a thread;
one that died loses it after ``HEADROOM_LEASE_SECONDS``. A holder that was only slow finds out at
its next write: each transaction that takes a lock of ours checks the leases of its run first
(:func:`check_leases`), and nobody else gets a lease while such a transaction is open.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from uuid import uuid4

import structlog
from django.conf import settings
from django.db import Error, IntegrityError, OperationalError, connection, transaction

from journal.errors import HeadroomError
from journal.outages import LOCK_NOT_AVAILABLE, sqlstate_of
from journal.statements import fetch_rows, fetch_together

log = structlog.get_logger(__name__)

BEAT_LEASE = "beat"
RENEWALS_PER_LEASE = 3
#: What a crash of the server forgets of a lease is the end of its holder's session as well.
FIRST = """
SELECT set_config('synchronous_commit', 'off', true), set_config('lock_timeout', '1s', true);
"""
TAKE = """
INSERT INTO journal_lease AS lease (name, holder, epoch, taken_at, renewed_at, expires_at)
SELECT %(name)s, %(holder)s, 1, clock_timestamp(), clock_timestamp(),
       clock_timestamp() + %(seconds)s * interval '1 second'
 WHERE NOT EXISTS (
    SELECT FROM journal_lease WHERE name = %(name)s AND expires_at > clock_timestamp()
 )
ON CONFLICT (name) DO UPDATE
   SET holder = excluded.holder, epoch = lease.epoch + 1, taken_at = excluded.taken_at,
       renewed_at = excluded.renewed_at, expires_at = excluded.expires_at
 WHERE lease.expires_at <= clock_timestamp()
RETURNING epoch
"""
RENEW = """
UPDATE journal_lease
   SET renewed_at = clock_timestamp(),
       expires_at = clock_timestamp() + %(seconds)s * interval '1 second'
 WHERE name = %(name)s AND holder = %(holder)s AND epoch = %(epoch)s AND expires_at > renewed_at
RETURNING epoch
"""
#: It ends before its last renewal, which tells it from one that ran out: that one is renewed late.
GIVE_BACK = """
UPDATE journal_lease SET expires_at = least(renewed_at, clock_timestamp())
 WHERE name = %(name)s AND holder = %(holder)s AND epoch = %(epoch)s
RETURNING epoch
"""
#: A new holder changes the epoch, a key, and so waits for those that have checked it.
CHECK = """
SELECT 1 FROM journal_lease
 WHERE name = %(name)s AND holder = %(holder)s AND epoch = %(epoch)s FOR KEY SHARE
"""


class LeaseLost(HeadroomError):  # noqa: N818 - a state of the system, not a defect
    """Another process does this work now: the one that asks was silent for too long."""

    code = "lease_lost"


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldLease:
    """A lease that was ours when it was taken.

    Attributes:
        epoch: How often it has changed hands.
    """

    name: str
    holder: str
    epoch: int

    def renew(self) -> bool:
        """Hold it from now on for another term; return whether it is ours still."""
        return bool(_write(RENEW, self._values()))

    def give_back(self) -> None:
        """End it now."""
        _write(GIVE_BACK, self._values())

    def check(self) -> None:
        """Keep it ours until the end of the open transaction.

        Raises:
            LeaseLost: somebody else has it.
        """
        if not fetch_rows(CHECK, self._values()):
            raise LeaseLost(
                f"{self.name} is done by another process now", lease=self.name, epoch=self.epoch
            )

    def _values(self) -> dict[str, str | float]:
        return {
            "name": self.name,
            "holder": self.holder,
            "epoch": self.epoch,
            "seconds": settings.HEADROOM.lease_seconds,
        }


_held: ContextVar[tuple[HeldLease, ...]] = ContextVar("held_leases", default=())


def take_lease(name: str) -> HeldLease | None:
    """Take a lease if nobody has it; never waits for its holder.

    Raises:
        RuntimeError: a transaction is open: nobody else would see the lease before its end.
    """
    holder = f"{socket.gethostname()}:{os.getpid()}:{uuid4()}"
    values: dict[str, str | float] = {
        "name": name,
        "holder": holder,
        "seconds": settings.HEADROOM.lease_seconds,
    }
    try:
        epoch = _write(TAKE, values)
    except OperationalError as error:
        if sqlstate_of(error) != LOCK_NOT_AVAILABLE:
            raise
        return None  # its holder is writing, if too late
    except IntegrityError:
        return None  # nobody had it, and another was first: of the two keys only one arbitrates
    return HeldLease(name=name, holder=holder, epoch=epoch) if epoch else None


@contextmanager
def held_lease(name: str) -> Iterator[bool]:
    """Hold a lease, if it is free now; for runs of several transactions.

    Yields:
        Whether it is ours.
    """
    lease = take_lease(name)
    if lease is None:
        yield False
        return
    token = _held.set((*_held.get(), lease))
    _renewals.add(lease)
    try:
        yield True
    finally:
        _held.reset(token)
        _renewals.remove(lease)
        with suppress(Error):  # what is not given back ends by itself
            lease.give_back()


def check_leases() -> None:
    """Keep the leases of this run ours until the end of the open transaction.

    Raises:
        LeaseLost: somebody else has one of them.
    """
    for lease in _held.get():
        lease.check()


class _Renewals:
    """Renews the leases that this process holds, from one thread.

    The thread starts with the first lease and ends at the first look that finds none, so that work
    of milliseconds starts none of its own. Its connection is there only for that moment.
    """

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Begin anew: a forked child has neither the thread of its parent nor its leases."""
        self._changed = threading.Condition()
        self._due: dict[HeldLease, float] = {}
        self._wakes_at = 0.0
        self._thread: threading.Thread | None = None

    def add(self, lease: HeldLease) -> None:
        """Renew a lease several times per term, as long as it is ours."""
        due = time.monotonic() + _interval()
        with self._changed:
            self._due[lease] = due
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._run, name="leases", daemon=True)
                self._thread.start()
            elif due < self._wakes_at:
                self._changed.notify()

    def remove(self, lease: HeldLease) -> None:
        """Renew it no more."""
        with self._changed:
            self._due.pop(lease, None)

    def _run(self) -> None:
        while due := self._next():
            try:
                for lease in due:
                    self._renew(lease)
            finally:
                connection.close()

    def _next(self) -> list[HeldLease]:
        """Wait until leases are due and return them; none when none was held at a look."""
        with self._changed:
            while True:
                now = time.monotonic()
                due = [lease for lease, moment in self._due.items() if moment <= now]
                self._due.update(dict.fromkeys(due, now + _interval()))
                if due:
                    return due
                was_idle = not self._due
                self._wakes_at = min(self._due.values(), default=now + _interval())
                self._changed.wait(self._wakes_at - now)
                if was_idle and not self._due:
                    self._thread = None
                    return []

    def _renew(self, lease: HeldLease) -> None:
        try:
            is_ours = lease.renew()
        except Error as error:
            log.warning("lease_not_renewed", lease=lease.name, error=str(error))
            return
        with self._changed:
            is_lost = not is_ours and self._due.pop(lease, None) is not None
        if is_lost:
            log.error("lease_lost", lease=lease.name, epoch=lease.epoch)


_renewals = _Renewals()
os.register_at_fork(after_in_child=_renewals.forget)


def _interval() -> float:
    return settings.HEADROOM.lease_seconds / RENEWALS_PER_LEASE


def _write(sql: str, values: dict[str, str | float]) -> int:
    """Run one statement in a transaction of its own; return the epoch, 0 if no row was written.

    One message is one transaction, without BEGIN and COMMIT of their own.
    """
    alone = transaction.atomic(durable=True) if connection.in_atomic_block else nullcontext()
    with alone:  # within one that is not a test's it is refused
        *_, rows = fetch_together([FIRST + sql], values)
        return int(rows[0][0]) if rows else 0
