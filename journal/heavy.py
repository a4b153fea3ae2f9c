"""Questions that take long to answer: few at once, with a deadline, not at the cost of others.

What-if, simulations, drain checks, previews and explanations compute for seconds where a region is
large. A machine admits a few at once and refuses more. The pure part is computed by a forked child,
which sees what its parent has loaded, yields the cores to all others, has an
interpreter lock of its own, is killed at the deadline, and hands back what it computed. It talks to
nobody: all its files but the one to its parent are closed before it begins. A lock that another
thread held at the fork is never free in the child; the deadline ends that as well (docs/adr/0022).
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import gc
import hashlib
import os
import pickle
import select
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import Enum
from typing import NoReturn, Protocol, TypeVar

import structlog
from django.conf import settings
from django.db import connection

from journal.errors import Unavailable

log = structlog.get_logger(__name__)

Computed = TypeVar("Computed")
NICENESS = 19
QUICK_SECONDS = 0.25  # of a core, after which a child gets only what is idle
_CHUNK_BYTES = 1 << 20
_STANDARD_FILES = 3
_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None, use_errno=True)


class Computing(Protocol):
    """Where the pure part of an answer is computed: in a child, or here."""

    def __call__(self, work: Callable[[], Computed], /) -> Computed:
        """Return what the work returns."""


class Length(Enum):
    """How long questions take; those that take seconds do not keep shorter ones from a place."""

    LONG = "long"  # the whole region, step by step
    SHORT = "short"  # one request, in every detail


class TooManyComputations(Unavailable):
    """As many long computations as are allowed are under way on this machine."""

    code = "too_many_computations"


class ComputationTooLong(Unavailable):
    """A computation was ended at its deadline."""

    code = "computation_too_long"
    usual_retry_seconds = 60


@contextmanager
def heavy_question(length: Length = Length.LONG) -> Iterator[None]:
    """Answer a question that takes long, if not too many are being answered.

    Raises:
        TooManyComputations: ``HEADROOM_HEAVY__MOST_AT_ONCE`` are under way on this machine.
    """
    most = most_at_once()
    place = _taken_place(length, most)
    if place is None:
        raise TooManyComputations(
            f"{most} such computations are under way on this machine: ask again", most_at_once=most
        )
    try:
        yield
    finally:
        os.close(place)


def most_at_once() -> int:
    """Return how many questions of a length are answered at once on this machine."""
    chosen: int = settings.HEADROOM.heavy.most_at_once
    return chosen or max(1, len(os.sched_getaffinity(0)) // 2)


def _taken_place(length: Length, most: int) -> int | None:
    """Return a file whose lock is a place, None if none is free; closing it gives it back.

    All processes of the machine that work on our database share the places. A process that dies
    gives its own back.
    """
    directory = settings.HEADROOM.shared_directory
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    database = connection.settings_dict
    address = f"{database['HOST']}:{database['PORT']}/{database['NAME']}"
    key = hashlib.sha256(address.encode()).hexdigest()[:16]
    for number in range(most):
        name = directory / f"heavy-{key}-{length.value}-{number}.lock"
        place = os.open(name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(place, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(place)
        else:
            return place
    return None


def computed_apart(work: Callable[[], Computed]) -> Computed:
    """Return what pure work computes, from a child with a deadline and the lowest priority.

    Args:
        work: Needs nothing but memory: no database, no other thread, no file. What it returns is
            pickled.

    Raises:
        ComputationTooLong: it took longer than ``HEADROOM_HEAVY__DEADLINE_SECONDS``.
        Exception: what the work raised.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        _compute(work, writing)
    os.close(writing)
    deadline_seconds = settings.HEADROOM.heavy.deadline_seconds
    try:
        content = _received(reading, time.monotonic() + deadline_seconds)
    finally:
        os.close(reading)
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    if content is None:
        log.warning("computation_too_long", deadline_seconds=deadline_seconds)
        raise ComputationTooLong(
            f"the computation took longer than {deadline_seconds:g} s: ask for less at once",
            deadline_seconds=deadline_seconds,
        )
    if not content:
        raise ComputationTooLong("the computation died")
    answer: Computed
    answer, error = pickle.loads(content)  # noqa: S301 - our own child's
    if error is not None:
        raise error
    return answer


def computed_here(work: Callable[[], Computed]) -> Computed:
    """Return what work computes: :func:`computed_apart` where there is time enough."""
    return work()


def _compute(work: Callable[[], object], writing: int) -> NoReturn:
    """Be the child: compute, tell, end without any cleaning up, which is the parent's."""
    try:
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        os.nice(NICENESS)
        _yield_cores_later()
        gc.disable()
        os.closerange(_STANDARD_FILES, writing)
        os.closerange(writing + 1, os.sysconf("SC_OPEN_MAX"))
        try:
            told = pickle.dumps((work(), None))
        except Exception as error:  # noqa: BLE001 - whatever it is, the parent raises it
            told = pickle.dumps((None, error))
        with os.fdopen(writing, "wb") as output:
            output.write(told)
    finally:
        os._exit(0)


def _yield_cores_later() -> None:
    """Leave the cores to all others once the computation turns out to be long."""

    def leave(*_: object) -> None:
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))

    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGPROF, leave)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGPROF})
    signal.setitimer(signal.ITIMER_PROF, QUICK_SECONDS)


def _received(reading: int, deadline: float) -> bytes | None:
    """Return all that a child tells, None if it has not ended by then."""
    chunks: list[bytes] = []
    poll = select.poll()
    poll.register(reading, select.POLLIN)
    while (left := deadline - time.monotonic()) > 0:
        if not poll.poll(left * 1000):
            continue
        chunk = os.read(reading, _CHUNK_BYTES)
        if not chunk:
            return b"".join(chunks)
        chunks.append(chunk)
    return None
