"""The bridge process: one of them holds the lease and mirrors, others stand by."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from queue import Empty, SimpleQueue
from typing import Final

import structlog
from django.conf import settings
from django.db import Error, close_old_connections
from django.db.models.functions import Now

from bridge.clusters import naming
from bridge.domain.kinds import ObjectKind
from bridge.kube.client import kind_path
from bridge.kube.listing import ObjectsApi
from bridge.kube.login import ClusterUnavailable
from bridge.kube.observing import Heard, Listed, Observer
from bridge.models import MirrorState
from bridge.services.compare import compare, take_events
from bridge.services.drain import Drain, Way
from bridge.services.follow import follow, register
from journal.leases import LeaseLost, held_lease
from journal.services import record_heartbeat

log = structlog.get_logger(__name__)

LEASE: Final = "bridge"
HEARTBEAT: Final = "bridge"
STAND_BY_SECONDS: Final = 1.0
ALIVE_SECONDS: Final = 15.0
#: The server of a watch tells where it stands once a minute.
SILENCE_SECONDS: Final = 180.0


class Observed:
    """What is heard of a cluster, until it is taken in."""

    def __init__(self, way: Way) -> None:
        self._way = way
        self._news: SimpleQueue[Listed | Heard] = SimpleQueue()
        self._comparing: list[Iterator[int]] = []
        self._unlisted = set(ObjectKind)
        turn = threading.Lock()
        self._observers = [
            Observer(
                kind,
                lambda kind=kind: self._open(kind),  # type: ignore[misc]  # bound now
                self._news.put,
                list_seconds=settings.HEADROOM.bridge.compare_interval_seconds,
                turn=turn,
            )
            for kind in ObjectKind
        ]

    def _open(self, kind: ObjectKind) -> ObjectsApi:
        chosen = naming()
        return ObjectsApi(
            self._way.open().client,
            kind_path(chosen.group, chosen.version, kind.plural),
            selector=f"{chosen.managed_label}={chosen.region_value}",
            silence_seconds=SILENCE_SECONDS,
            is_whole=False,
        )

    def close(self) -> None:
        """End its threads."""
        for observer in self._observers:
            observer.stop()
        for observer in self._observers:
            observer.join()

    def is_listed(self) -> bool:
        """Return whether each kind was listed once, as far as the cluster answers."""
        return not self._unlisted or self._way.is_resting()

    def take_in(self, *, wait_seconds: float = 0.0) -> int:
        """Mark what others changed, and compare a slice of a list; return how many differed."""
        events: list[Heard] = []
        try:
            news = self._news.get(timeout=wait_seconds) if wait_seconds else self._news.get_nowait()
            while True:
                if isinstance(news, Heard):
                    events.append(news)
                else:
                    self._unlisted.discard(news.kind)
                    self._comparing.append(self._compare(news))
                news = self._news.get_nowait()
        except Empty:
            pass
        done = take_events(self._way.name, events) if events else 0
        if self._comparing:
            differing = next(self._comparing[0], None)
            if differing is None:
                self._comparing.pop(0)
            done += 1 + (differing or 0)
        return done

    def _compare(self, listed: Listed) -> Iterator[int]:
        try:
            yield from compare(self._way.open(), self._way.name, listed)
        except ClusterUnavailable as error:
            self._way.rest(error)


class Mirror:
    """Mirrors while it holds the lease."""

    def __init__(self) -> None:
        self._drain = Drain()
        self._observed: dict[str, Observed] = {}
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
                self._look_away()
                until.wait(STAND_BY_SECONDS)
        finally:
            self.close()

    def close(self) -> None:
        """End its threads and connections."""
        self._look_away()
        self._drain.close()

    def _look_away(self) -> None:
        for observed in self._observed.values():
            observed.close()
        self._observed.clear()

    def _lead(self, until: threading.Event) -> None:
        with held_lease(LEASE) as is_ours:
            if not is_ours:
                return
            register()
            while not until.is_set():
                if not self.step():
                    until.wait(settings.HEADROOM.bridge.poll_interval_seconds)

    def step(self) -> int:
        """Take in what changed, write what waits, compare a little; return what was done.

        Raises:
            LeaseLost: another process is the bridge now.
        """
        if time.monotonic() - self._alive_at > ALIVE_SECONDS:
            record_heartbeat(HEARTBEAT)
            self._alive_at = time.monotonic()
        done = follow() + self._drain.run_batch()
        done += sum(observed.take_in() for observed in self._observed.values())
        return done or self._observe()

    def _observe(self) -> int:
        """Begin to observe clusters once nothing waits for them; wait a moment for first lists."""
        waiting = MirrorState.objects.filter(is_due=True, failures=0, due_at__lte=Now())
        for name, way in self._drain.ways.items():
            if not (name in self._observed or way.is_resting() or waiting.exists()):
                self._observed[name] = Observed(way)
        unlisted = [each for each in self._observed.values() if not each.is_listed()]
        pause = settings.HEADROOM.bridge.poll_interval_seconds
        return sum(1 + each.take_in(wait_seconds=pause) for each in unlisted)
