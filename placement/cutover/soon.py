"""Mirroring what this process wrote at once, from one thread, so that little is ever left."""

from __future__ import annotations

import os
import threading
from typing import Final

import structlog
from django.db import connection

from placement.cutover import mirroring
from placement.cutover.peer import shared_peer

log = structlog.get_logger(__name__)


class _Soon:
    """A thread that is there while something waits; workers do what it leaves."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Begin anew: a forked child has not the thread of its parent."""
        self._lock = threading.Lock()
        self._is_asked = False
        self._thread: threading.Thread | None = None

    def ask(self) -> None:
        """Have what waits mirrored; returns at once."""
        with self._lock:
            self._is_asked = True
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="mirror", daemon=True)
                self._thread.start()

    def _run(self) -> None:
        try:
            while self._goes_on():
                mirroring.mirror(shared_peer())
        except Exception as error:  # noqa: BLE001 - a thread that died counted as there for ever
            log.info("cutover_mirror_left", error=str(error))
            with self._lock:
                self._thread = None
        finally:
            connection.close()

    def _goes_on(self) -> bool:
        with self._lock:
            if not self._is_asked:
                self._thread = None
                return False
            self._is_asked = False
            return True


_soon: Final = _Soon()
os.register_at_fork(after_in_child=_soon.forget)


def mirror_soon() -> None:
    """Have what waits mirrored; returns at once."""
    _soon.ask()
