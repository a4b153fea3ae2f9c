"""One snapshot of a host's resources, refreshed beside everything else (spec hosts, A.12)."""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass

from headroom_host_agent.resources.manager import Manager
from headroom_host_agent.resources.status import FullResourceStatus

log = logging.getLogger(__name__)
DEFAULT_INTERVAL_SECONDS = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """What readers of metrics see; image figures are None when their lister failed."""

    status: FullResourceStatus
    image_bytes: int | None
    max_image_bytes: int


class Monitor:
    """Refreshes a snapshot in a thread of its own; readers only read."""

    def __init__(
        self, manager: Manager, *, interval_seconds: float = DEFAULT_INTERVAL_SECONDS
    ) -> None:
        if interval_seconds <= 0:
            raise ValueError(f"interval_seconds must be positive, is {interval_seconds}")
        self._manager, self._interval_seconds = manager, interval_seconds
        self._snapshot: Snapshot | None = None
        self._stop = threading.Event()
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None

    @property
    def snapshot(self) -> Snapshot | None:
        """The latest; None before the first, when nothing is to be published."""
        return self._snapshot

    def refresh(self) -> None:
        """Take a snapshot now."""
        status = self._manager.get_full_status()
        breakdown = status.disk_breakdown
        self._snapshot = Snapshot(
            status=status,
            image_bytes=breakdown.images_bytes + breakdown.oci_cache_bytes if breakdown else None,
            max_image_bytes=self._manager.max_image_storage_bytes(),
        )

    def start(self) -> None:
        """Start refreshing; nothing when it does. One that crashed can be started again."""
        with self._starting:
            if self._thread is None or not self._thread.is_alive():
                self._stop.clear()
                self._thread = threading.Thread(target=self._run, name="resources", daemon=True)
                self._thread.start()

    def stop(self, *, timeout_seconds: float = 5.0) -> None:
        """Stop refreshing and wait for it."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(timeout_seconds)

    def _run(self) -> None:
        try:
            self.refresh()
            while not self._stop.wait(self._interval_seconds):
                self.refresh()
        except Exception:
            log.exception("the monitor of resources ended")
