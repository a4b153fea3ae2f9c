"""Hands out jobs, one after the other or beside each other (spec hosts, B.4, B.15, B.16).

What a job does is :class:`Maker`'s.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections import deque
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime

from headroom_host_agent.provision.documents import digest_of
from headroom_host_agent.provision.making import Maker
from headroom_host_agent.provision.options import EngineOptions, Usage
from headroom_host_agent.provision.provisioners import HostContext, ProvisionError
from headroom_host_agent.provision.sources import Job
from headroom_host_agent.provision.stored import Row, State
from headroom_host_agent.provision.wire import Reservation, ResultState

log = logging.getLogger(__name__)
STOP_SECONDS = 30.0
COUNTER_SECONDS = 2.0
_REPEAT_SECONDS = 30 * 60.0
_GRACE_SECONDS = 30.0  # for a job that is told to end, before others go on without it
_LOOK_SECONDS = 0.1
_ALIVE_SECONDS = 10.0


@dataclass(slots=True, kw_only=True)
class _Work:
    """A job that runs, with those of the same artefacts that wait for it."""

    done: threading.Event = field(default_factory=threading.Event)
    waiting: deque[Reservation] = field(default_factory=deque)


class Engine:
    """Handles jobs one after the other; types that allow it beside each other.

    Two jobs of the same artefacts never run at once, in whatever order they come.
    """

    def __init__(self, options: EngineOptions) -> None:
        self._options = options
        self._maker = Maker(options)
        self._queue: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._queued: set[tuple[str, int, int, bool]] = set()
        self._work: dict[str, _Work] = {}
        self._handled: dict[tuple[str, int, str], float] = {}
        self._all_processed = False
        self._lock = threading.Lock()

    def run(self, stop: threading.Event) -> None:
        """Handle jobs until the source is closed or ``stop`` is set.

        What was stored or begun before comes first. After ``stop`` jobs that run have some seconds
        to end; what they leave is taken up at the next start.

        Raises:
            Exception: What the source raised.
        """
        self.take_up()
        raised: list[Exception] = []
        threading.Thread(target=self._read, args=(stop, raised), name="source", daemon=True).start()
        while (job := self._next()) is not None and not stop.is_set():
            self._take(job, stop)
        self._end(stop)
        if raised:
            raise raised[0]

    def take_up(self) -> None:
        """Hand out again what is stored and not ended."""
        for reservation in self._options.store.unfinished():
            self._emit(Job(reservation=reservation))

    def request_cleanup(self) -> None:
        """Clean up after what is queued; nothing until all known work was handed out."""
        self._queue.put(Job(reservation=None))

    def usage(self) -> Usage:
        """Return what runs, from the store: it cannot drift."""
        return self._maker.usage()

    def counters(
        self, stop: threading.Event, *, interval_seconds: float = COUNTER_SECONDS
    ) -> Iterator[Usage]:
        """Yield what runs, now and after each interval, until ``stop`` is set."""
        yield self.usage()
        while not stop.wait(interval_seconds):
            yield self.usage()

    def provision(self, reservation: Reservation) -> None:
        """Make a reservation real and keep its result; one that was is told again.

        Raises:
            ProvisionError: It failed. The result says so, and nothing of it is left, or what is
                left is kept by name.
        """
        with self._alone(reservation.id):
            self._maker.provision(reservation, threading.Event())

    def decommission(self, reservation: Reservation) -> None:
        """Remove what a reservation made; an unknown one is told as deleted.

        Raises:
            ProvisionError: It cannot be removed now; it is tried again with what has ended.
        """
        with self._alone(reservation.id):
            self._maker.decommission(reservation, threading.Event())

    def decommission_cached(self, identity: str, reason: str) -> None:
        """Remove a workload that is beyond repair, and tell why.

        Raises:
            UnknownReservationError: It is not here.
        """
        reservation = self._options.store.get(identity)
        death = self._maker.message(reservation, ResultState.ERROR, reason, kind="death")
        with self._alone(identity):
            try:
                self._maker.decommission(reservation, threading.Event(), (death,))
            except ProvisionError as error:
                log.warning("%s: %s", identity, error)
                self._options.store.post(death)

    def release(self, identity: str, reason: str) -> None:
        """Remove what a reservation made and keep it, failed: it is told as a death.

        Raises:
            ProvisionError: It cannot be removed now.
            UnknownReservationError: It is not here.
        """
        with self._alone(identity):
            row = self._options.store.row(identity)
            self._maker.remove(row, threading.Event())
            self._maker.die(row, reason)

    def look_at(self, identity: str) -> bool:
        """Return whether what a reservation made is as it was made.

        What is not is told as a death, with the reason, and removed as far as that is possible.

        Raises:
            Exception: What the provisioner raised: nothing is known then.
            ProvisionError: A job of it runs.
        """
        with self._alone(identity):
            row = self._options.store.find(identity)
            if row is None or row.state != State.DEPLOYED:
                return True
            provisioner = self._options.provisioners.get(row.reservation.type)
            if provisioner is None or provisioner.verify(self.context(row), row.reservation):
                return True
            try:
                self._maker.remove(row, threading.Event())
            except ProvisionError as error:
                log.warning("%s: what is left of it stays: %s", identity, error)
            self._maker.die(row, "drifted: it is not any more as it was made")
            return False

    def context(self, row: Row) -> HostContext:
        """Return what a provisioner may use for a stored reservation."""
        return self._maker.context(
            self._maker.runs_as(row.reservation, row), row.reservation, threading.Event()
        )

    def tell_again(self, identities: Collection[str]) -> None:
        """Tell the results of reservations that the server knows without one."""
        self._maker.tell_again(identities)

    def _next(self) -> Job | None:
        while True:
            self._options.alive()
            with suppress(queue.Empty):
                return self._queue.get(timeout=_ALIVE_SECONDS)

    def _read(self, stop: threading.Event, raised: list[Exception]) -> None:
        try:
            self._options.source.run(stop, self._emit)
        except Exception as error:
            log.exception("the source of jobs broke")
            raised.append(error)
        self._queue.put(None)

    def _emit(self, job: Job) -> None:
        if job.reservation is not None:
            with self._lock:
                key = _key_in_queue(job.reservation)
                if key in self._queued:
                    return
                self._queued.add(key)
        self._queue.put(job)

    def _take(self, job: Job, stop: threading.Event) -> None:
        if job.reservation is None:
            self._all_processed |= job.last
            if self._all_processed:
                self._clean_up()
            return
        with self._lock:
            self._queued.discard(_key_in_queue(job.reservation))
        work = self._start(job.reservation)
        provisioner = self._options.provisioners.get(job.reservation.type)
        if work is not None and not (provisioner is not None and provisioner.parallel):
            self._await(work, stop)

    def _clean_up(self) -> None:
        try:
            self._options.cleanup()
        except Exception:
            log.exception("the cleanup failed")

    def _start(self, reservation: Reservation) -> _Work | None:
        """Start a job, or queue it behind that of the same artefacts."""
        row = self._options.store.find(reservation.id)
        key = self._maker.runs_as(reservation, row)
        with self._lock:
            if key in self._work:
                self._work[key].waiting.append(reservation)
                return None
            work = self._work[key] = _Work()
        threading.Thread(
            target=self._run, args=(key, reservation, work), name=f"job {key}", daemon=True
        ).start()
        return work

    @contextmanager
    def _alone(self, identity: str) -> Iterator[None]:
        """Keep jobs off what a reservation made, which come afterwards.

        Raises:
            ProvisionError: A job of it runs.
        """
        row = self._options.store.find(identity)
        key = identity if row is None else self._maker.runs_as(row.reservation, row)
        with self._lock:
            if key in self._work:
                raise ProvisionError("busy", f"a job of {identity} runs")
            work = self._work[key] = _Work()
        try:
            yield
        finally:
            following = self._following(key, work)
            if following is None:
                work.done.set()
            else:
                threading.Thread(
                    target=self._run, args=(key, following, work), name=f"job {key}", daemon=True
                ).start()

    def _following(self, key: str, work: _Work) -> Reservation | None:
        with self._lock:
            following = work.waiting.popleft() if work.waiting else None
            if following is None:
                del self._work[key]
            return following

    def _run(self, key: str, reservation: Reservation, work: _Work) -> None:
        following: Reservation | None = reservation
        while following is not None:
            cancelled = threading.Event()
            timer = threading.Timer(self._options.job_seconds, cancelled.set)
            timer.daemon = True
            timer.start()
            try:
                self._handle(following, cancelled)
            finally:
                timer.cancel()
                following = self._following(key, work)
        work.done.set()

    def _await(self, work: _Work, stop: threading.Event) -> None:
        """Wait for a job; no longer than it may take, and some seconds after a stop."""
        monotonic = self._options.monotonic
        end = monotonic() + self._options.job_seconds + _GRACE_SECONDS
        is_stopping = False
        while not work.done.wait(_LOOK_SECONDS):
            self._options.alive()
            if stop.is_set() and not is_stopping:
                is_stopping, end = True, min(end, monotonic() + STOP_SECONDS)
            if monotonic() >= end:
                log.error("a job does not end; others go on without it")
                return

    def _end(self, stop: threading.Event) -> None:
        with self._lock:
            running = list(self._work.values())
        for work in running:
            self._await(work, stop)

    def _handle(self, reservation: Reservation, cancelled: threading.Event) -> None:
        """Handle one job; whatever goes wrong with it, the next is handled.

        Nothing is done for a job of which a newer one is stored: that comes by itself.
        """
        now = self._options.now()
        row = self._options.store.find(reservation.id)
        if row is not None and row.reservation.seq > reservation.seq:
            return
        is_going = self._is_going(reservation, row, now)
        may = self._options.may_remove() if is_going else self._options.may_begin(reservation)
        if not may or (not is_going and self._is_repeated(reservation)):
            return
        began = self._options.monotonic()
        is_well = False
        try:
            if is_going:
                self._maker.decommission(reservation, cancelled)
            else:
                self._maker.provision(reservation, cancelled)
                self._remember(reservation)
            is_well = True
            self._options.on_usage(self.usage())
        except ProvisionError as error:
            log.warning("%s (%s): %s", reservation.id, reservation.type, error)
            if not is_going:
                self._remember(reservation)
        except Exception:
            log.exception("%s (%s)", reservation.id, reservation.type)
        self._options.on_job(reservation.type, self._options.monotonic() - began, is_well)

    @staticmethod
    def _is_going(reservation: Reservation, row: Row | None, now: datetime | None) -> bool:
        is_ended = now is not None and reservation.expired(now)
        is_begun = row is not None and row.state == State.DELETING
        return reservation.to_delete or is_ended or is_begun

    def _is_repeated(self, reservation: Reservation) -> bool:
        now = self._options.monotonic()
        with self._lock:
            self._handled = {
                key: at for key, at in self._handled.items() if now - at < _REPEAT_SECONDS
            }
            return _handled_key(reservation) in self._handled

    def _remember(self, reservation: Reservation) -> None:
        with self._lock:
            self._handled[_handled_key(reservation)] = self._options.monotonic()


def _key_in_queue(reservation: Reservation) -> tuple[str, int, int, bool]:
    return reservation.id, reservation.attempt, reservation.seq, reservation.to_delete


def _handled_key(reservation: Reservation) -> tuple[str, int, str]:
    return reservation.id, reservation.attempt, digest_of(reservation)
