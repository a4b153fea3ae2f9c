"""The bridge process: one of them holds the lease and mirrors, others stand by."""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor, wait
from datetime import datetime
from typing import Final

import structlog
from django.conf import settings
from django.db import Error, close_old_connections

from bridge.kube.login import ClusterUnavailable
from bridge.models import MirrorState
from bridge.services.compare import Listed, compare, list_objects
from bridge.services.drain import Drain, Way
from bridge.services.follow import follow, register
from journal.clock import database_now
from journal.leases import LeaseLost, held_lease
from journal.services import record_heartbeat

log = structlog.get_logger(__name__)

LEASE: Final = "bridge"
HEARTBEAT: Final = "bridge"
STAND_BY_SECONDS: Final = 1.0
ALIVE_SECONDS: Final = 15.0


class Mirror:
    """Mirrors while it holds the lease."""

    def __init__(self) -> None:
        self._drain = Drain()
        self._compared: dict[str, float] = {}
        self._listing: dict[str, Future[Listed]] = {}
        self._lister = ThreadPoolExecutor(1, thread_name_prefix="lister")
        self._alive_at = 0.0

    def run(self, until: threading.Event) -> None:
        """Mirror, or stand by, until told to end; a database that is away is awaited."""
        try:
            while not until.is_set():
                try:
                    close_old_connections()
                    self._lead(until)
                except (Error, LeaseLost) as error:
                    log.warning("mirror_interrupted", error=str(error))
                until.wait(STAND_BY_SECONDS)
        finally:
            self.close()

    def close(self) -> None:
        """End its threads and connections."""
        self._lister.shutdown()
        self._drain.close()

    def _lead(self, until: threading.Event) -> None:
        with held_lease(LEASE) as is_ours:
            if not is_ours:
                return
            register()
            self._compared.clear()  # the one before us may have written after its end
            self._listing.clear()
            while not until.is_set():
                if not self.step():
                    until.wait(settings.HEADROOM.bridge.poll_interval_seconds)

    def step(self) -> int:
        """Take in what changed, write what waits, compare when it is time; return what was done.

        Raises:
            LeaseLost: another process is the bridge now.
        """
        if time.monotonic() - self._alive_at > ALIVE_SECONDS:
            record_heartbeat(HEARTBEAT)
            self._alive_at = time.monotonic()
        done = follow() + self._drain.run_batch()
        for way in self._due_ways() if not done else ():
            self._listing[way.name] = self._lister.submit(self._list, way, database_now())
        return done or sum(self._compare(way) for way in self._listed_ways())

    def _list(self, way: Way, began: datetime) -> Listed:
        return list_objects(way.open(), began)

    def _listed_ways(self) -> list[Way]:
        """Return the clusters that are being listed; wait a moment for their lists."""
        if self._listing:
            wait(self._listing.values(), settings.HEADROOM.bridge.poll_interval_seconds)
        return [self._drain.ways[name] for name in list(self._listing)]

    def _due_ways(self) -> list[Way]:
        """Return the clusters that it is time to compare and that nothing waits for."""
        period = settings.HEADROOM.bridge.compare_interval_seconds
        now = time.monotonic()
        due = [
            way
            for way in self._drain.ways.values()
            if now >= self._compared.get(way.name, now - period) + period
            and way.name not in self._listing
            and not way.is_resting()
        ]
        waiting = MirrorState.objects.filter(is_due=True, failures=0)
        return due if due and not waiting.exists() else []

    def _compare(self, way: Way) -> int:
        """Compare once all is listed; that counts as work as long as it goes on."""
        if not self._listing[way.name].done():
            return 1
        listed = self._listing.pop(way.name)
        try:
            differing = compare(way.open(), way.name, listed.result())
        except ClusterUnavailable as error:
            way.rest(error)
            return 0
        self._compared[way.name] = time.monotonic()
        return differing
