"""Whether another service is worth a try: a circuit breaker."""

from __future__ import annotations

import threading
from collections.abc import Callable


class Circuit:
    """Opens after failures in a row, and lets one try through from time to time.

    Threads may share it.

    Args:
        most_failures: Failures in a row after which it opens.
        open_seconds: How long nobody tries then.
        clock: Monotonic seconds.
    """

    def __init__(
        self, *, most_failures: int, open_seconds: float, clock: Callable[[], float]
    ) -> None:
        self._most_failures = most_failures
        self._open_seconds = open_seconds
        self._clock = clock
        self._lock = threading.Lock()
        self._failures = 0
        self._closed_at = 0.0

    def wait_seconds(self) -> float:
        """Return 0 to whoever may try, else for how long nobody may.

        Whoever tries while it is open holds it open for everybody else, for one turn.
        """
        if self._failures < self._most_failures:
            return 0.0
        with self._lock:
            now = self._clock()
            if self._failures < self._most_failures:
                return 0.0
            if now < self._closed_at:
                return self._closed_at - now
            self._closed_at = now + self._open_seconds
            return 0.0

    def succeeded(self) -> None:
        """Close it."""
        if self._failures:
            with self._lock:
                self._failures = 0

    def failed(self) -> None:
        """Count a failure."""
        with self._lock:
            self._failures += 1
            if self._failures >= self._most_failures:
                self._closed_at = self._clock() + self._open_seconds
