"""Where jobs come from: polls, ends, both (spec hosts, B.3, B.7).

A source pushes jobs until it is closed or told to stop; it stops promptly, also while it waits.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from headroom_host_agent.provision.wire import Reservation

log = logging.getLogger(__name__)
POLL_SECONDS = 10.0
EXPIRY_SECONDS = 20.0
PAGE_LIMIT = 200
_TRIES = 5  # of a page that cannot be read, before it is asked for item by item
REFERENCE_ORDER: Mapping[str, int] = {
    "debug": 0,
    "network": 1,
    "network_resource": 2,
    "zdb": 3,
    "volume": 4,
    "container": 5,
    "kubernetes": 6,
    "public_ip": 7,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A reservation to handle; ``last``, without one, says that all known work was handed out."""

    reservation: Reservation | None
    last: bool = False


LAST = Job(reservation=None, last=True)
Emit = Callable[[Job], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """What a poll brought.

    Attributes:
        last_id: Highest number that the page covers; of the next poll one less than the start.
        caught_up: Whether there was no more, None when the server does not say.
        end_of_stream: Whether nothing will ever follow.
        pause_seconds: Before the next poll, None for the usual interval between two.
    """

    reservations: tuple[Reservation, ...]
    last_id: int
    caught_up: bool | None = None
    end_of_stream: bool = False
    pause_seconds: float | None = None


class RetryablePollError(Exception):
    """The server was not reached or refused: the same is asked again, after so long if it said."""

    def __init__(self, reason: str, *, after_seconds: float | None = None) -> None:
        super().__init__(reason)
        self.after_seconds = after_seconds


class StartAgainError(Exception):
    """Everything is asked for again, from the first number on."""


class UnreadablePageError(Exception):
    """An answer cannot be read; ``last_id`` when at least that is known."""

    def __init__(self, reason: str, *, last_id: int | None = None) -> None:
        super().__init__(reason)
        self.last_id = last_id


class Poller(Protocol):
    """Asks a server for a host's reservations."""

    def poll(self, host_id: str, start: int, limit: int) -> Page:
        """Return at most ``limit`` reservations from number ``start`` on.

        Raises:
            RetryablePollError: No answer, or none of success.
            UnreadablePageError: The answer cannot be read.
            StartAgainError: What was told before does not hold any more.
        """


class Expirer(Protocol):
    """Knows what has ended."""

    def get_expired(self) -> Iterable[Reservation]:
        """Return reservations whose end is past."""


class Source(Protocol):
    """Yields jobs."""

    def run(self, stop: threading.Event, emit: Emit) -> None:
        """Emit jobs until the source is closed or ``stop`` is set."""


def in_order(
    reservations: Iterable[Reservation], order: Mapping[str, int] = REFERENCE_ORDER
) -> tuple[Reservation, ...]:
    """Return a page as it is handled: deletions first, in reverse, then the rest by type.

    A type without an order counts as 0; what is equal keeps its place.
    """
    page = tuple(reservations)

    def rank(reservation: Reservation) -> int:
        return order.get(reservation.type, 0)

    deletions = sorted((one for one in page if one.to_delete), key=rank)
    others = sorted((one for one in page if not one.to_delete), key=rank)
    return (*reversed(deletions), *others)


class PollSource:
    """Polls from a number on: 0 gives a host that booted anew everything again.

    Emits ``LAST`` once, when the server says that it told all; a server that does not say so has
    when two polls bring the same last number.
    """

    def __init__(
        self,
        poller: Poller,
        host_id: str,
        *,
        min_interval_seconds: float = POLL_SECONDS,
        limit: int = PAGE_LIMIT,
        start: int = 0,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._poller, self._host_id = poller, host_id
        self._min_interval_seconds, self._monotonic = min_interval_seconds, monotonic
        self._full_limit = self._limit = limit
        self._next = start
        self._previous = self._failures = self._singles = 0
        self._pause_seconds: float | None = None
        self._wants_marker = True

    def run(self, stop: threading.Event, emit: Emit) -> None:
        """Poll until the stream ends or ``stop`` is set."""
        while not stop.is_set():
            started = self._monotonic()
            self._pause_seconds = None
            page = self._ask()
            if page is not None:
                self._pause_seconds = page.pause_seconds
                self._take(page, stop, emit)
                if page.end_of_stream:
                    return
            if self._pause_seconds is not None:
                stop.wait(self._pause_seconds)
            else:
                stop.wait(max(0.0, started + self._min_interval_seconds - self._monotonic()))

    def _ask(self) -> Page | None:
        try:
            page = self._poller.poll(self._host_id, self._next, self._limit)
        except RetryablePollError as error:
            log.warning("poll from %d: %s", self._next, error)
            self._pause_seconds = error.after_seconds
            return None
        except StartAgainError:
            self._next, self._limit = 0, self._full_limit
            self._failures, self._pause_seconds = 0, 0.0
            return None
        except UnreadablePageError as error:
            self._step_over(error)
            return None
        return page

    def _step_over(self, error: UnreadablePageError) -> None:
        """Ask again; then item by item, so that only what cannot be read is left out."""
        log.warning("poll from %d, %d at most: %s", self._next, self._limit, error)
        self._failures += 1
        if self._failures < _TRIES:
            return
        if self._limit > 1:
            self._limit, self._singles = 1, 0
            return
        step = self._next if error.last_id is None else max(self._next, error.last_id)
        log.error("reservation %d cannot be read and is left out: %s", step, error)
        self._next = step + 1
        self._limit, self._failures = self._full_limit, 0

    def _take(self, page: Page, stop: threading.Event, emit: Emit) -> None:
        self._next, self._failures = page.last_id + 1, 0
        for reservation in page.reservations:
            if stop.is_set():
                return
            emit(Job(reservation=reservation))
        self._singles += len(page.reservations)
        if not page.reservations or self._singles >= self._full_limit:
            self._limit = self._full_limit  # the page that could not be read is behind
        is_told = page.last_id == self._previous if page.caught_up is None else page.caught_up
        if self._wants_marker and is_told:
            emit(LAST)
            self._wants_marker = False
        self._previous = page.last_id


class ExpirySource:
    """Emits what has ended, again and again until it is gone; never ``LAST``."""

    def __init__(self, expirer: Expirer, *, interval_seconds: float = EXPIRY_SECONDS) -> None:
        self._expirer, self._interval_seconds = expirer, interval_seconds

    def run(self, stop: threading.Event, emit: Emit) -> None:
        """Look every interval until ``stop`` is set; a look that fails is logged and left out."""
        while not stop.wait(self._interval_seconds):
            try:
                expired = tuple(self._expirer.get_expired())
            except Exception:
                log.exception("what has ended cannot be read")
                continue
            for reservation in expired:
                if stop.is_set():
                    return
                emit(Job(reservation=reservation))


class CombinedSource:
    """Runs sources beside each other; closed when all are, so that ends go on after a stream."""

    def __init__(self, *sources: Source) -> None:
        self._sources = sources

    def run(self, stop: threading.Event, emit: Emit) -> None:
        """Run all. ``emit`` is called from their threads.

        Raises:
            Exception: What a source raised first, after all others closed.
        """
        raised: list[Exception] = []

        def run(source: Source) -> None:
            try:
                source.run(stop, emit)
            except Exception as error:
                log.exception("a source of jobs broke")
                raised.append(error)

        threads = [
            threading.Thread(target=run, args=(source,), name=type(source).__name__, daemon=True)
            for source in self._sources
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if raised:
            raise raised[0]
