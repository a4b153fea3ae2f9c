"""Noticing, at the price of a ``stat`` now and then, that a file became another."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

LOOK_SECONDS = 1.0


class WatchedFile:
    """A file of the operator's that is read again when it changes.

    Args:
        path: Which; a symbolic link is followed, as those of Kubernetes change their target.
        look_seconds: Shortest time between two looks.
        clock: Seconds that only grow.
    """

    def __init__(
        self,
        path: Path,
        *,
        look_seconds: float = LOOK_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.path = path
        self._look_seconds = look_seconds
        self._clock = clock
        self._lock = threading.Lock()
        self._stamp = self._look()
        self._look_at = clock() + look_seconds

    def has_changed(self) -> bool:
        """Return whether it is another than at the last look; true for one caller a change."""
        if self._clock() < self._look_at:
            return False
        with self._lock:
            if self._clock() < self._look_at:
                return False
            self._look_at = self._clock() + self._look_seconds
            before, self._stamp = self._stamp, self._look()
            return before != self._stamp

    def _look(self) -> tuple[int, int, int] | None:
        try:
            status = self.path.stat()
        except OSError:
            return None
        return status.st_mtime_ns, status.st_size, status.st_ino
