"""Telling workers that there is something to do now, never in the thread of a request.

A nudge is only a hint, since beat comes anyway: it goes to the broker from a thread of its own, so
a broker that hangs delays no answer, and one that is not there costs a line in the log.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as TookTooLong
from contextvars import copy_context

import structlog
from celery import current_app

from journal.outages import BrokerFailure, BrokerUnavailable

log = structlog.get_logger(__name__)

#: What no worker has taken by then is for beat to send again.
EXPIRES_SECONDS = 60
#: How long a caller waits who has to know that the broker took a task.
PATIENCE_SECONDS = 1.0


class _Sender:
    """One thread that sends; the same hint waits only once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: set[str] = set()
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="nudges")

    def hint(self, task: str) -> None:
        with self._lock:
            if task in self._waiting:
                return
            self._waiting.add(task)
        self._pool.submit(copy_context().run, self._send_hint, task)

    def send(self, task: str, arguments: Sequence[object]) -> Future[object]:
        return self._pool.submit(copy_context().run, send_task, task, arguments)

    def _send_hint(self, task: str) -> None:
        with self._lock:
            self._waiting.discard(task)
        try:
            send_task(task, ())
        except (*BrokerFailure, OSError) as error:
            log.warning("nudge_not_sent", task=task, error=str(error))
        except Exception:  # a hint may fail: the schedule does the work all the same
            log.exception("nudge_failed", task=task)


_sender = _Sender()


def hint_worker(task: str) -> None:
    """Ask a worker to do a task soon, once for all hints that wait; never waits, never fails."""
    _sender.hint(task)


def hand_to_worker(task: str, arguments: Sequence[object]) -> None:
    """Give a task to the broker that nobody would send again.

    Raises:
        BrokerUnavailable: the broker did not take it in time. One that hangs may still do so.
    """
    sending = _sender.send(task, arguments)
    try:
        sending.result(PATIENCE_SECONDS)
    except (*BrokerFailure, OSError, TookTooLong) as error:
        sending.cancel()
        raise BrokerUnavailable("no task can be started: the broker does not answer") from error


def send_task(
    task: str,
    arguments: Sequence[object],
    *,
    expires: float = EXPIRES_SECONDS,
    countdown: float | None = None,
) -> None:
    """Give a task to the broker now, once; a worker that has not begun in time drops it."""
    current_app.send_task(
        task, args=list(arguments), expires=expires, countdown=countdown, retry=False
    )


def _start_anew() -> None:
    """Have a thread in a forked process, too."""
    global _sender  # noqa: PLW0603 - threads do not outlive a fork
    _sender = _Sender()


os.register_at_fork(after_in_child=_start_anew)
