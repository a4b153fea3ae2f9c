"""Asking once for all who wait, and never letting more wait than threads can be spared."""

from __future__ import annotations

import contextvars
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Generic, TypeVar

Answered = TypeVar("Answered")


YOUNG_SECONDS = 1.0
"""While no question is open for longer than this, the other side counts as quick."""
PATIENCE_SECONDS = 0.5
"""Longest wait for a place among the waiting, while the other side is quick."""


class TooManyWaitError(Exception):
    """As many callers wait as may."""


class NoAnswerInTimeError(Exception):
    """The question goes on, but the caller has waited long enough."""


@dataclass(slots=True)
class _Flight(Generic[Answered]):
    future: Future[Answered]
    began: float
    waiting: int = 0


class TokenFlights(Generic[Answered]):
    """Questions under way: one for each key, asked by threads of their own.

    So a caller waits for a bounded time, whatever the other side does, and a question that was
    answered too late for its caller is answered for the next one. When as many wait as may, others
    are patient for a moment if the other side is quick, as a burst is soon over, and give up at
    once if it is not.

    Args:
        most_waiting: Callers that may wait at once, and questions that are asked at once.
        seconds: Longest time a caller waits.
    """

    def __init__(self, *, most_waiting: int, seconds: float) -> None:
        self._most_waiting = most_waiting
        self._seconds = seconds
        self._lock = threading.Condition()
        self._flights: dict[bytes, _Flight[Answered]] = {}
        self._waiting = 0
        self._threads = ThreadPoolExecutor(most_waiting, thread_name_prefix="token")

    def ask(self, key: bytes, question: Callable[[], Answered]) -> Answered:
        """Return the answer to a question, asked anew unless one with the same key is under way.

        Raises:
            TooManyWaitError: as many callers wait as may, and it is not over in a moment.
            NoAnswerInTimeError: there was no answer in time.
        """
        with self._lock:
            self._find_place()
            flight = self._flights.get(key)
            if flight is None:
                flight = self._flights[key] = self._start(key, question)
            self._waiting += 1
            flight.waiting += 1
        try:
            if not wait([flight.future], self._seconds).done:
                raise NoAnswerInTimeError
            return flight.future.result()
        finally:
            self._leave(key, flight)

    def _find_place(self) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while self._waiting >= self._most_waiting:
            oldest = min((flight.began for flight in self._flights.values()), default=deadline)
            seconds = min(deadline, oldest + YOUNG_SECONDS) - time.monotonic()
            if seconds <= 0:
                raise TooManyWaitError
            self._lock.wait(seconds)

    def _start(self, key: bytes, question: Callable[[], Answered]) -> _Flight[Answered]:
        context = contextvars.copy_context()

        def run() -> Answered:
            try:
                return context.run(question)
            finally:
                self._end(key)

        return _Flight(self._threads.submit(run), began=time.monotonic())

    def _end(self, key: bytes) -> None:
        with self._lock:
            self._flights.pop(key, None)

    def _leave(self, key: bytes, flight: _Flight[Answered]) -> None:
        with self._lock:
            self._waiting -= 1
            self._lock.notify()
            flight.waiting -= 1
            if not flight.waiting and flight.future.cancel():  # it had not begun
                self._flights.pop(key, None)
