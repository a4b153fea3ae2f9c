"""Tells the server what became of jobs, until it answers (spec hosts, B.6, D.8)."""

from __future__ import annotations

import logging
import random
import threading
from typing import Protocol

from headroom_host_agent.provision.store import SqliteStore
from headroom_host_agent.provision.stored import Message

log = logging.getLogger(__name__)
FIRST_SECONDS, FACTOR, LONGEST_SECONDS, JITTER = 0.5, 1.5, 15.0, 0.5
RETRYABLE_STATUSES = frozenset({408, 425, 429, *range(500, 600)})
_LOOK_SECONDS = 5.0  # for messages that another process wrote


class NotToldError(Exception):
    """The server was not reached or is out of order: the same is told again."""


class RefusedError(Exception):
    """The server's answer is final, and it does not take this."""


class Feedback(Protocol):
    """Delivers messages."""

    def tell(self, message: Message) -> None:
        """Deliver one.

        Raises:
            NotToldError: It is to be tried again.
            RefusedError: It is not.
        """


class Sender:
    """Delivers the outbox, each message until there is an answer, however long that takes."""

    def __init__(
        self, store: SqliteStore, feedback: Feedback, *, chance: random.Random | None = None
    ) -> None:
        self._store, self._feedback = store, feedback
        self._chance = chance or random.Random()  # noqa: S311  # spreads retries
        self._failures = 0

    def run(self, stop: threading.Event) -> None:
        """Deliver until ``stop`` is set; then ``flush`` what is left, if that is wanted."""
        while not stop.is_set():
            self._store.posted.clear()
            if self.deliver():
                continue
            if self._failures:
                stop.wait(self._pause_seconds())
            else:
                self._store.posted.wait(_LOOK_SECONDS)

    def flush(self) -> bool:
        """Deliver what waits, as long as each try succeeds; return whether nothing is left."""
        while self.deliver():
            pass
        return self._store.next_message() is None

    def deliver(self) -> bool:
        """Deliver one message; return whether one was answered."""
        message = self._store.next_message()
        if message is None:
            self._failures = 0
            return False
        try:
            self._feedback.tell(message)
        except NotToldError as error:
            log.warning("%s is told again later: %s", message.key, error)
            self._store.tried(message)
            self._failures += 1
            return False
        except RefusedError as error:
            log.error("%s is refused: %s", message.key, error)  # noqa: TRY400  # no fault of ours
        self._store.told(message)
        self._failures = 0
        return True

    def _pause_seconds(self) -> float:
        steady = min(LONGEST_SECONDS, FIRST_SECONDS * FACTOR ** min(self._failures - 1, 20))
        return steady * self._chance.uniform(1 - JITTER, 1 + JITTER)
