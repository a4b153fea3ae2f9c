"""Listening to Nova's notifications: they become hints, which the next look at changes follows.

What this process had heard and not written is lost when it is killed; nothing else is, as each pass
of the feed sees without hints what they would have shown earlier.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Final

import structlog
from django.conf import settings
from django.db import Error, close_old_connections, connections
from oslo_config import cfg
from oslo_service import backend

from hosts.doctor import LISTENER, NOTIFICATION
from hosts.domain import notifications
from hosts.domain.notifications import Hint, hints_of
from hosts.feed.hints import MOST_HINTS, note_hints
from journal.errors import HeadroomError
from journal.readings import counter
from journal.services import record_heartbeat

backend.init_backend(backend.BackendType.THREADING)  # else the import takes that of eventlet
import oslo_messaging  # noqa: E402 - see above

log = structlog.get_logger(__name__)

#: How long hints gather before they are written together, and after the database was away.
GATHER_SECONDS: Final = 0.1
RETRY_SECONDS: Final = 1.0
ALIVE_SECONDS: Final = 15.0
#: How long a queue that is away may keep the process from ending.
STOP_SECONDS: Final = 5.0
NONE: Final = "none"
HEARD_TOTAL: Final = counter(
    "feed_notifications_total",
    "Notifications that were heard, by what they hint at.",
    hint=(
        NONE,
        *sorted({notifications.MIGRATIONS, *(kind for _, kind, _ in notifications.EVENTS if kind)}),
    ),
)


class NoQueue(HeadroomError):  # noqa: N818 - says what is the case
    """The listener is not told where to listen."""

    code = "no_queue"


class Hints:
    """Hints that wait to be written, each once; a thread writes them."""

    def __init__(self) -> None:
        self._lock = threading.Condition()
        self._waiting: dict[Hint, None] = {}
        self._is_ended = False
        self._is_listening = self._is_new = False

    def begin(self) -> None:
        """Note that our queue is there and read: from now on we are alive."""
        with self._lock:
            self._is_listening = self._is_new = True
            self._lock.notify()

    def add(self, hint: Hint) -> None:
        """Take a hint; beyond a bound it is dropped, as the next pass sees all of it anyway."""
        with self._lock:
            if len(self._waiting) < MOST_HINTS:
                self._waiting[hint] = None
                self._lock.notify()

    def end(self) -> None:
        """Let :meth:`write_on` return once all is written, if it can be."""
        with self._lock:
            self._is_ended = True
            self._lock.notify()

    def write_on(self) -> None:
        """Write what comes, and say every few seconds that we are there, until the end."""
        while True:
            with self._lock:
                self._lock.wait_for(self._is_wanted, ALIVE_SECONDS)
                self._is_new = False
                if self._waiting:
                    self._lock.wait_for(lambda: self._is_ended, GATHER_SECONDS)
                is_ended, taken, self._waiting = self._is_ended, self._waiting, {}
            self._write(taken)
            if is_ended:
                return

    def _is_wanted(self) -> bool:
        return bool(self._waiting) or self._is_ended or self._is_new

    def _write(self, taken: dict[Hint, None]) -> None:
        try:
            close_old_connections()
            if self._is_listening:
                record_heartbeat(LISTENER)
            if taken:
                note_hints(taken)
                record_heartbeat(NOTIFICATION)
        except Error as error:
            log.warning("hints_not_written", count=len(taken), error=str(error))
            with self._lock:
                self._waiting = {**taken, **self._waiting}
                self._lock.wait_for(lambda: self._is_ended, RETRY_SECONDS)


class Endpoint:
    """What oslo.messaging calls with each notification; nothing that comes makes it fail."""

    def __init__(self, add: Callable[[Hint], None]) -> None:
        self._add = add

    def info(self, _context: Any, _publisher: Any, event: Any, payload: Any, _about: Any) -> None:
        """Take the hints of a notification."""
        found = hints_of(event, payload)
        HEARD_TOTAL.labels(found[0].kind if found else NONE).inc()
        for hint in found:
            self._add(hint)

    warn = error = info


def listen(until: threading.Event) -> None:
    """Listen until told to end, or until nothing can be written; a queue that is away is awaited.

    Raises:
        NoQueue: The settings do not say where to listen.
    """
    url = settings.HEADROOM.listener.transport_url
    if url is None:
        raise NoQueue("HEADROOM_LISTENER__TRANSPORT_URL has to say where Nova's message queue is")
    hints = Hints()
    listener = _listener(Endpoint(hints.add), url.get_secret_value())

    def start() -> None:
        listener.start()
        hints.begin()

    def write() -> None:
        try:
            hints.write_on()
        finally:
            connections.close_all()
            until.set()

    writer = threading.Thread(target=write, name="hints")
    writer.start()
    try:
        # Both wait for a queue that is away, and must not keep the process from ending.
        threading.Thread(target=start, name="listener", daemon=True).start()
        until.wait()
        ending = threading.Thread(target=listener.stop, name="ending", daemon=True)
        ending.start()
        ending.join(STOP_SECONDS)
    finally:
        hints.end()
        writer.join()


def _listener(endpoint: Endpoint, url: str) -> Any:  # Any: the library has no types
    """Return what listens at a queue of our own."""
    chosen = settings.HEADROOM.listener
    transport = oslo_messaging.get_notification_transport(cfg.ConfigOpts(), url=url)
    targets = [
        oslo_messaging.Target(exchange=chosen.exchange, topic=topic) for topic in chosen.topics
    ]
    return oslo_messaging.get_notification_listener(
        transport, targets, [endpoint], executor="threading", pool=chosen.pool
    )
