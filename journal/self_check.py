"""Comparing what a process keeps with what the database says, now and then, in the background."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import structlog
from django.db import DatabaseError, connection

log = structlog.get_logger(__name__)


class SelfCheck:
    """Starts a comparison in a thread of its own when one is due; one at a time.

    Args:
        name: Of the thread and in the log.
        verify: Compares, repairs and counts.
        every_seconds: Between two comparisons; 0 is never.
    """

    def __init__(
        self, name: str, verify: Callable[[], object], *, every_seconds: Callable[[], float]
    ) -> None:
        self._name = name
        self._verify = verify
        self._every_seconds = every_seconds
        self._lock = threading.Lock()
        self._done_at = 0.0
        self._is_running = False

    def done(self) -> None:
        """Note that what is kept was compared, or built anew, just now."""
        self._done_at = time.monotonic()

    def start_if_due(self) -> None:
        """Start a comparison if the last one is long ago and none is running."""
        every = self._every_seconds()
        if not every or time.monotonic() - self._done_at < every:
            return
        with self._lock:
            if self._is_running:
                return
            self._is_running = True
        threading.Thread(target=self._run, name=self._name, daemon=True).start()

    def _run(self) -> None:
        try:
            self._verify()
        except DatabaseError as error:
            log.warning("self_check_failed", check=self._name, error=str(error))
        finally:
            self.done()
            self._is_running = False
            connection.close()
