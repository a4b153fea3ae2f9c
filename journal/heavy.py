"""Questions that take long to answer: few at once, with a deadline, not at the cost of others.

What-if, simulations and explanations compute for seconds where a region is large. A web process
admits a few at once and refuses more. The pure part is computed by a forked child, which sees what
its parent has loaded, has a low priority and an interpreter lock of its own, is killed at the
deadline, and hands back bytes. It talks to nobody: all its files but the one to its parent are
closed before it begins. A lock that another thread held at the fork is never free in the child; the
deadline ends that as well (docs/adr/0022).
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import pickle
import select
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NoReturn

import structlog
from django.conf import settings

from journal.errors import Unavailable

log = structlog.get_logger(__name__)

NICENESS = 10
_CHUNK_BYTES = 1 << 20
_STANDARD_FILES = 3
_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None, use_errno=True)


class TooManyComputations(Unavailable):
    """As many long computations as are allowed are under way in this process."""

    code = "too_many_computations"


class ComputationTooLong(Unavailable):
    """A computation was ended at its deadline."""

    code = "computation_too_long"
    usual_retry_seconds = 60


class _Places:
    """Counts what is under way in this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._taken = 0

    def take(self, most: int) -> bool:
        with self._lock:
            if self._taken >= most:
                return False
            self._taken += 1
            return True

    def give_back(self) -> None:
        with self._lock:
            self._taken -= 1


_places = _Places()


@contextmanager
def heavy_question() -> Iterator[None]:
    """Answer a question that takes long, if not too many are being answered.

    Raises:
        TooManyComputations: ``HEADROOM_HEAVY__MOST_AT_ONCE`` are under way in this process.
    """
    most = settings.HEADROOM.heavy.most_at_once
    if not _places.take(most):
        message = f"{most} such computations are under way in this process: ask again"
        raise TooManyComputations(message, most_at_once=most)
    try:
        yield
    finally:
        _places.give_back()


def computed_apart(work: Callable[[], bytes]) -> bytes:
    """Return what pure work computes, from a child with a deadline and a low priority.

    Args:
        work: Needs nothing but memory: no database, no other thread, no file.

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
        message = f"the computation took longer than {deadline_seconds:g} s: ask for less at once"
        raise ComputationTooLong(message, deadline_seconds=deadline_seconds)
    if not content:
        message = "the computation died"
        raise ComputationTooLong(message)
    answer, error = pickle.loads(content)  # noqa: S301 - our own child's
    if error is not None:
        raise error
    return bytes(answer)


def _compute(work: Callable[[], bytes], writing: int) -> NoReturn:
    """Be the child: compute, tell, end without any cleaning up, which is the parent's."""
    try:
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        os.nice(NICENESS)
        gc.disable()
        os.closerange(_STANDARD_FILES, writing)
        os.closerange(writing + 1, os.sysconf("SC_OPEN_MAX"))
        try:
            told = pickle.dumps((work(), None))
        except Exception as error:  # noqa: BLE001 - whatever it is, the parent raises it
            told = pickle.dumps((b"", error))
        with os.fdopen(writing, "wb") as output:
            output.write(told)
    finally:
        os._exit(0)


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
