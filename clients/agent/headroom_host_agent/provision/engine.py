"""Turns reservations into something real, and back (spec hosts, B.4, B.5, B.15, B.16)."""

from __future__ import annotations

import json
import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path

from headroom_host_agent.provision.documents import digest_of, result_document
from headroom_host_agent.provision.provisioners import HostContext, Provisioner, ProvisionError
from headroom_host_agent.provision.signing.keys import SigningError
from headroom_host_agent.provision.signing.v2 import canonical_json
from headroom_host_agent.provision.sources import Job, Source
from headroom_host_agent.provision.store import SqliteStore
from headroom_host_agent.provision.stored import Artifact, Message, Row, State
from headroom_host_agent.provision.units import Units, counter_of, usable_memory_bytes
from headroom_host_agent.provision.wire import EPOCH, Reservation, Result, ResultState
from headroom_host_agent.resources.facts import ResourceType
from headroom_host_agent.resources.manager import Manager

log = logging.getLogger(__name__)
JOB_SECONDS = 300.0
STOP_SECONDS = 30.0
COUNTER_SECONDS = 2.0
_REPEAT_SECONDS = 30 * 60.0
_GRACE_SECONDS = 30.0  # for a job that is told to end, before others go on without it
_LOOK_SECONDS = 0.1
_ALIVE_SECONDS = 10.0
_NETWORKS = ("network", "network_resource")


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What runs on the host: units, and how many workloads of each type."""

    units: Units
    workloads: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """What an engine works with.

    Attributes:
        sign: Document of a result -> the message's body.
        now: Time of the server; None when unknown: nothing ends then.
        on_usage: Told what runs after each job that went well.
        cleanup: Called when all known work was handed out, and on request.
        job_seconds: After which a job is told to end and has failed.
        may_begin: Whether a reservation may be made now; one that may not stays stored, and is
            handed out again by ``take_up``.
        may_remove: Whether what has ended may be removed now.
        alive: Called by the loop at least every ten seconds, also during a job.
        on_job: Told type, seconds and whether it went well of each job.
    """

    host_id: str
    source: Source
    store: SqliteStore
    provisioners: Mapping[str, Provisioner]
    manager: Manager
    data_dir: Path
    sign: Callable[[Mapping[str, object]], bytes]
    now: Callable[[], datetime | None]
    on_usage: Callable[[Usage], None] = lambda _: None
    cleanup: Callable[[], None] = lambda: None
    job_seconds: float = JOB_SECONDS
    may_begin: Callable[[Reservation], bool] = lambda _: True
    may_remove: Callable[[], bool] = lambda: True
    alive: Callable[[], None] = lambda: None
    on_job: Callable[[str, float, bool], None] = lambda *_: None
    monotonic: Callable[[], float] = time.monotonic


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
        units, workloads, networks = Units(), dict[str, int](), set[str]()
        for row in self._options.store.rows():
            if row.state != State.DEPLOYED:
                continue
            kind = row.reservation.type
            provisioner = self._options.provisioners.get(kind)
            if provisioner is not None:
                units += provisioner.units(row.reservation)
            if kind in _NETWORKS:
                name = f"{row.reservation.user_id}\n{_named(row.reservation)}"
                if name in networks:
                    continue
                networks.add(name)
            counter = counter_of(kind) or kind
            workloads[counter] = workloads.get(counter, 0) + 1
        return Usage(units=units, workloads=workloads)

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
            self._provision(reservation, threading.Event())

    def decommission(self, reservation: Reservation) -> None:
        """Remove what a reservation made; an unknown one is told as deleted.

        Raises:
            ProvisionError: It cannot be removed now; it is tried again with what has ended.
        """
        with self._alone(reservation.id):
            self._decommission(reservation, threading.Event(), ())

    def decommission_cached(self, identity: str, reason: str) -> None:
        """Remove a workload that is beyond repair, and tell why.

        Raises:
            UnknownReservationError: It is not here.
        """
        reservation = self._options.store.get(identity)
        death = self._message(reservation, ResultState.ERROR, reason, kind="death")
        with self._alone(identity):
            try:
                self._decommission(reservation, threading.Event(), (death,))
            except ProvisionError as error:
                log.warning("%s: %s", identity, error)
                self._options.store.post(death)

    def _next(self) -> Job | None:
        while True:
            self._options.alive()
            with suppress(queue.Empty):
                return self._queue.get(timeout=_ALIVE_SECONDS)

    def release(self, identity: str, reason: str) -> None:
        """Remove what a reservation made and keep it, failed: it is told as a death.

        Raises:
            ProvisionError: It cannot be removed now.
            UnknownReservationError: It is not here.
        """
        with self._alone(identity):
            row = self._options.store.row(identity)
            death = self._message(row.reservation, ResultState.ERROR, reason, kind="death")
            self._remove(row, threading.Event())
            result = self._result(row.reservation, ResultState.ERROR, reason)
            self._options.store.finish(replace(row.reservation, result=result), (death,))

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
            reason = "drifted: it is not any more as it was made"
            death = self._message(row.reservation, ResultState.ERROR, reason, kind="death")
            try:
                self._remove(row, threading.Event())
            except ProvisionError as error:
                log.warning("%s: what is left of it stays: %s", identity, error)
            result = self._result(row.reservation, ResultState.ERROR, reason)
            self._options.store.finish(replace(row.reservation, result=result), (death,))
            return False

    def context(self, row: Row) -> HostContext:
        """Return what a provisioner may use for a stored reservation."""
        return self._context(row.runs_as, row.reservation, threading.Event())

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
        key = row.runs_as if row is not None else reservation.reference or reservation.id
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
        key = row.runs_as if row is not None else identity
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
                self._decommission(reservation, cancelled, ())
            else:
                self._provision(reservation, cancelled)
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

    def _provision(self, reservation: Reservation, cancelled: threading.Event) -> None:
        store = self._options.store
        row = store.find(reservation.id)
        if row is not None and self._is_told(row, reservation):
            return
        old = store.find(reservation.reference) if reservation.reference else None
        if old is not None and old.state in (State.DEPLOYED, State.FAILED):
            self._migrate(old, reservation)
            return
        runs_as = row.runs_as if row is not None else reservation.reference or reservation.id
        if not store.begin(reservation, runs_as=runs_as):
            return
        try:
            data = self._make(reservation, runs_as, cancelled)
        except ProvisionError as error:
            failed = self._result(reservation, ResultState.ERROR, f"{error.code}: {error}")
            self._finish(reservation, failed)
            raise
        self._finish(reservation, self._result(reservation, ResultState.OK, "", data))

    def _is_told(self, row: Row, reservation: Reservation) -> bool:
        """Tell a stored result again; return whether there was one of this very attempt."""
        known = row.reservation
        is_same = row.digest == digest_of(reservation) and known.attempt == reservation.attempt
        if row.state not in (State.DEPLOYED, State.FAILED) or not is_same:
            return False
        if not known.result.is_nil:
            self._options.store.post(self._told(known, known.result, kind="result"))
        return True

    def _make(self, reservation: Reservation, runs_as: str, cancelled: threading.Event) -> bytes:
        """Call the provisioner and return the data of the result.

        Raises:
            ProvisionError: It cannot be made, or failed and was removed again.
        """
        provisioner = self._checked(reservation)
        context = self._context(runs_as, reservation, cancelled)
        try:
            provisioner.check(context, reservation)
            data = canonical_json(provisioner.provision(context, reservation))
            self._check_in_time(cancelled)
        except Exception as error:
            failure = _as_failure(error)
            left = self._compensate(provisioner, context, reservation)
            text = f"{failure}; what it left cannot be removed: {left}" if left else str(failure)
            raise ProvisionError(failure.code, text) from error
        return data

    def _check_in_time(self, cancelled: threading.Event) -> None:
        if cancelled.is_set():
            seconds = self._options.job_seconds
            raise ProvisionError("deadline", f"it took longer than {seconds:g} s")

    def _checked(self, reservation: Reservation) -> Provisioner:
        """Return the provisioner of a reservation that may be made.

        Raises:
            ProvisionError: It may not.
        """
        if reservation.node_id != self._options.host_id:
            raise ProvisionError("wrong_host", f"it is for the host {reservation.node_id!r}")
        if reservation.duration_ns <= 0:
            raise ProvisionError("no_duration", "it has no duration")
        if reservation.created <= EPOCH:
            raise ProvisionError("no_creation", "it does not say when it was created")
        provisioner = self._options.provisioners.get(reservation.type)
        if provisioner is None:
            raise ProvisionError("unsupported", f"type not supported: {reservation.type}")
        self._check_memory(provisioner.units(reservation).mru)
        return provisioner

    def _check_memory(self, asked_bytes: int) -> None:
        if asked_bytes <= 0:
            return
        total_bytes = self._options.manager.capacity(ResourceType.MEMORY).amount
        used_bytes = self.usage().units.mru
        if used_bytes + asked_bytes > usable_memory_bytes(total_bytes):
            raise ProvisionError("no_memory", "not enough free memory")

    def _compensate(
        self, provisioner: Provisioner, context: HostContext, reservation: Reservation
    ) -> str:
        """Remove what a failure left; return why that is impossible, empty when it is done."""
        calm = replace(context, cancelled=threading.Event())
        try:
            provisioner.decommission(calm, reservation)
        except Exception as error:
            log.exception("%s: what it left cannot be removed", reservation.id)
            return str(_as_failure(error))
        return ""

    def _migrate(self, old: Row, reservation: Reservation) -> None:
        """Take over what another reservation made.

        Raises:
            ProvisionError: It would have to be made anew: its content differs.
        """
        former = old.reservation
        if former.type != reservation.type or (
            former.data != reservation.data and reservation.type != "network"
        ):
            error = ProvisionError("content_differs", f"the content of {former.id} differs")
            self._finish(reservation, self._result(reservation, ResultState.ERROR, str(error)))
            raise error
        result = self._result(
            reservation, former.result.state, former.result.message, former.result.data
        )
        message = self._told(reservation, result, kind="result")
        self._options.store.migrate(former.id, replace(reservation, result=result), (message,))

    def _decommission(
        self,
        reservation: Reservation,
        cancelled: threading.Event,
        messages: tuple[Message, ...],
    ) -> None:
        store = self._options.store
        row = store.find(reservation.id)
        known = reservation if row is None else row.reservation
        gone = self._message(
            replace(known, attempt=reservation.attempt, fence_epoch=reservation.fence_epoch),
            ResultState.DELETED,
            "",
            kind="deleted",
        )
        if row is not None and row.begun:
            self._remove(row, cancelled)
        store.forget(reservation.id, (*messages, gone))

    def _remove(self, row: Row, cancelled: threading.Event) -> None:
        provisioner = self._options.provisioners.get(row.reservation.type)
        if provisioner is None:
            log.error("%s: no provisioner for %s", row.reservation.id, row.reservation.type)
            return
        self._options.store.begin_removal(row.reservation.id)
        context = self._context(row.runs_as, row.reservation, cancelled)
        try:
            provisioner.decommission(context, row.reservation)
        except Exception as error:
            raise _as_failure(error) from error

    def _context(
        self, runs_as: str, reservation: Reservation, cancelled: threading.Event
    ) -> HostContext:
        def intend(kind: str, name: str) -> None:
            self._options.store.intend(
                Artifact(name=name, kind=kind, reservation_id=reservation.id)
            )

        taken: dict[str, int] = {}
        others = []
        for row in self._options.store.rows():
            if row.state not in (State.QUEUED, State.FAILED) and row.runs_as != runs_as:
                others.append(row.reservation)
                for name, amount in row.reservation.resources.items():
                    taken[name] = taken.get(name, 0) + amount
        return HostContext(
            manager=self._options.manager,
            data_dir=self._options.data_dir,
            identity=runs_as,
            taken=taken,
            intend=intend,
            others=tuple(others),
            keep=lambda name, value: self._options.store.set_meta(f"of {name}", value),
            kept=lambda name: self._options.store.meta(f"of {name}"),
            cancelled=cancelled,
        )

    def _finish(self, reservation: Reservation, result: Result) -> None:
        message = self._told(reservation, result, kind="result")
        self._options.store.finish(replace(reservation, result=result), (message,))

    def _result(
        self, reservation: Reservation, state: ResultState, message: str, data: bytes = b"null"
    ) -> Result:
        return Result(
            type=reservation.type,
            id=reservation.id,
            created=self._options.now() or reservation.created,
            state=state,
            message=message,
            data=data,
        )

    def _message(
        self, reservation: Reservation, state: ResultState, text: str, *, kind: str
    ) -> Message:
        return self._told(reservation, self._result(reservation, state, text), kind=kind)

    def _told(self, reservation: Reservation, result: Result, *, kind: str) -> Message:
        body = self._options.sign(result_document(reservation, result))
        return Message(key=f"{reservation.id}:{reservation.attempt}:{kind}", body=body)


def _key_in_queue(reservation: Reservation) -> tuple[str, int, int, bool]:
    return reservation.id, reservation.attempt, reservation.seq, reservation.to_delete


def _handled_key(reservation: Reservation) -> tuple[str, int, str]:
    return reservation.id, reservation.attempt, digest_of(reservation)


def _named(reservation: Reservation) -> str:
    data = json.loads(reservation.data or b"null")
    return str(data.get("name", "")) if isinstance(data, dict) else ""


def _as_failure(error: Exception) -> ProvisionError:
    if isinstance(error, ProvisionError):
        return error
    if isinstance(error, SigningError):
        return ProvisionError("bad_result", f"the result cannot be signed: {error}")
    log.error("a provisioner broke", exc_info=error)
    return ProvisionError("broken", f"{type(error).__name__}: {error}")
