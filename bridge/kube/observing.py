"""Hearing what becomes of objects of one kind: a list now and then, a watch in between."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import structlog

from bridge.domain.kinds import ObjectKind
from bridge.kube.client import ObjectRefused
from bridge.kube.listing import (
    BOOKMARK,
    DELETED,
    ERROR,
    WATCH_SECONDS,
    Expired,
    ObjectsApi,
    Watch,
    error_of,
    event_of,
    version_of,
)
from bridge.kube.login import ClusterUnavailable

log = structlog.get_logger(__name__)

PAGE: Final = 250
#: Between two pages, so that the cluster answers writes meanwhile: at least so long, and so many
#: times as long as it took for the page.
PAGE_PAUSE_SECONDS: Final = 0.1
PAGE_PAUSE_RATIO: Final = 4.0
FIRST_PAUSE_SECONDS: Final = 0.5
LONGEST_PAUSE_SECONDS: Final = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """What a cluster had of a kind.

    Attributes:
        version: Of the whole list: later ones are not in it.
        versions: Name and version of each object.
    """

    kind: ObjectKind
    version: str
    versions: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Heard:
    """That an object was written or deleted, and its version then."""

    kind: ObjectKind
    name: str
    version: str
    is_gone: bool


class Observer:
    """Tells in a thread of its own what becomes of objects of one kind.

    A watch that breaks goes on from where it was; one that the cluster no longer knows begins with
    a list, as does one that has heard for as long as is said.
    """

    def __init__(
        self,
        kind: ObjectKind,
        open_api: Callable[[], ObjectsApi],
        tell: Callable[[Listed | Heard], None],
        *,
        list_seconds: float,
        turn: threading.Lock,
    ) -> None:
        """Begin.

        Args:
            open_api: Returns the objects; called anew after each failure.
            tell: Takes what was heard.
            list_seconds: How often all of them are listed.
            turn: Held while a list is read: one kind after the other.
        """
        self._kind = kind
        self._open_api = open_api
        self._tell = tell
        self._list_seconds = list_seconds
        self._turn = turn
        self._until = threading.Event()
        self._watch: Watch | None = None
        self._version = ""
        self._heard_seconds = 0.0
        self._thread = threading.Thread(
            target=self._run, name=f"observe-{kind.plural}", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """End; :meth:`join` waits for it."""
        self._until.set()
        if self._watch is not None:
            self._watch.stop()

    def join(self) -> None:
        """Wait for the end."""
        self._thread.join()

    def _run(self) -> None:
        pause_seconds = FIRST_PAUSE_SECONDS
        while not self._until.is_set():
            try:
                api = self._open_api()
                while not self._until.is_set():
                    self._follow(api)
                    pause_seconds = FIRST_PAUSE_SECONDS
            except Expired:
                self._version = ""
            except (ClusterUnavailable, ObjectRefused) as error:
                if isinstance(error, ObjectRefused):  # of a version that the server takes for none
                    self._version = ""
                if not self._until.is_set():
                    log.info("mirror_watch_broken", kind=self._kind.value, error=error.message)
            self._until.wait(pause_seconds)
            pause_seconds = min(2 * pause_seconds, LONGEST_PAUSE_SECONDS)

    def _follow(self, api: ObjectsApi) -> None:
        if not self._version or self._heard_seconds >= self._list_seconds:
            with self._turn:
                self._list(api)
            if self._until.is_set():
                return
        seconds = max(1, min(WATCH_SECONDS, int(self._list_seconds)))
        self._watch = api.watch(self._version, seconds=seconds)
        try:
            if not self._until.is_set():
                for event in self._watch:
                    self._hear(event)
        finally:
            self._watch.stop()
        self._heard_seconds += seconds

    def _list(self, api: ObjectsApi) -> None:
        versions: dict[str, str] = {}
        version = following = ""
        while not version or following:
            began = time.monotonic()
            page = api.page(limit=PAGE, following=following)
            for body in page.objects:
                versions[body["metadata"]["name"]] = version_of(body)
            version, following = version or page.version, page.following
            pause_seconds = PAGE_PAUSE_RATIO * (time.monotonic() - began)
            if following and self._until.wait(max(PAGE_PAUSE_SECONDS, pause_seconds)):
                return
        self._version, self._heard_seconds = version, 0.0
        self._tell(Listed(kind=self._kind, version=version, versions=versions))

    def _hear(self, event: Any) -> None:  # Any: the API's own shape
        said, body = event_of(event)
        if said == ERROR:
            raise error_of(body)
        version = version_of(body)
        if said != BOOKMARK:
            name = str(body["metadata"].get("name"))
            self._tell(Heard(kind=self._kind, name=name, version=version, is_gone=said == DELETED))
        self._version = version or self._version
