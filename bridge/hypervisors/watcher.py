"""Following Hypervisor objects: a list, then what changes, for as long as the process lives.

Everything that is heard could be lost at any moment and is found again: a watch that breaks goes on
from the last version that was written, one that is too old, and whatever fails otherwise, begins
with a list. So does a database with another past, which may lack what was written. One process of a
region follows; the others wait for its lease.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import datetime, timedelta
from queue import Empty, SimpleQueue
from typing import Any, Final

import structlog
from django.conf import settings
from django.db import Error, close_old_connections, connections

from bridge.domain.owned_fields import Stated
from bridge.hypervisors.kubernetes import hypervisors_client
from bridge.hypervisors.reading import name_of, object_node, stated_fields
from bridge.hypervisors.write_back import WriteBack
from bridge.hypervisors.writing import KIND, Malformed, Told, told_by, write_changes, write_list
from bridge.kube.listing import (
    ADDED,
    BOOKMARK,
    DELETED,
    ERROR,
    MODIFIED,
    Expired,
    ObjectsApi,
    Watch,
    error_of,
    event_of,
    version_of,
)
from bridge.kube.login import ClusterUnavailable
from hosts.feed.state import fail_pass, still_known
from hosts.region.run import ImportReport
from journal.actors import Actor
from journal.clock import database_now
from journal.errors import HeadroomError
from journal.history import Moment, is_continued, read_moment
from journal.leases import held_lease
from journal.readings import counter

log = structlog.get_logger(__name__)

Json = Any  # bodies keep the API's own shapes

LEASE: Final = "bridge.hypervisors"
#: How often a process that waits looks for the lease, and one that watches for its end.
LOOK_SECONDS: Final = 1.0
FIRST_PAUSE_SECONDS: Final = 1.0
EVENTS_TOTAL: Final = counter(
    "hypervisor_events_total",
    "Events of Hypervisor objects that were heard.",
    type=(ADDED, MODIFIED, DELETED, BOOKMARK, ERROR),
)
LISTS_TOTAL: Final = counter(
    "hypervisor_lists_total", "Full lists of Hypervisor objects that were written."
)
MALFORMED_TOTAL: Final = counter(
    "hypervisor_malformed_total", "Hypervisor objects that were heard and not understood."
)


class _OtherPast(Exception):  # noqa: N818 - a state of the database, not a defect
    """What was written may not be there."""


class Watcher:
    """Follows the objects of one cluster."""

    def __init__(
        self, open_api: Callable[[], ObjectsApi], *, actor: Actor, until: threading.Event
    ) -> None:
        """Remember where to look and when to end.

        Args:
            open_api: Returns the objects; called anew after each failure.
            until: Set when it is to end.
        """
        self._open_api = open_api
        self._actor = actor
        self._until = until
        self._objects: dict[str, Told] = {}
        self._stated: dict[str, Stated] | None = None
        self._before = 0
        self._version = ""
        self._moment = Moment(snapshot="")
        self._listed_at: datetime | None = None
        self._pause_seconds = FIRST_PAUSE_SECONDS

    def run(self) -> None:
        """Follow until told to end; what fails is tried again."""
        try:
            while not self._until.is_set():
                self._try_to_lead()
        finally:
            connections.close_all()

    def list_once(self, *, accepts_shrink: bool = False) -> ImportReport:
        """Read and write the whole list.

        Raises:
            ClusterUnavailable: It could not be read to its end; nothing was written.
        """
        with closing(self._open_api()) as api:
            return self._list(api, accepts_shrink=accepts_shrink)

    def _try_to_lead(self) -> None:
        try:
            with held_lease(LEASE) as is_ours:
                if is_ours:
                    self._stated = None
                    fields = WriteBack(hypervisors_client, lambda: self._stated)
                    with closing(self._open_api()) as api, fields:
                        self._follow(api)
                else:
                    self._until.wait(LOOK_SECONDS)
        except (HeadroomError, Error) as error:
            log.warning("hypervisors_not_followed", error=str(error))
            self._version = ""
            self._note_failure(error)
            close_old_connections()
            self._pause()

    def _follow(self, api: ObjectsApi) -> None:
        self._version = ""
        while not self._until.is_set():
            try:
                if not self._version or self._is_list_due():
                    self._list(api)
                self._watch(api)
            except _OtherPast:
                return
            except Expired as error:
                # A list may expire as well, while it is read: then the next one waits.
                if not self._version:
                    self._note_failure(error)
                    self._pause()
                self._version = ""
            except ClusterUnavailable as error:
                log.info("hypervisor_watch_broken", error=error.message)
                self._note_failure(error)
                self._pause()

    def _is_list_due(self) -> bool:
        age = timedelta(seconds=settings.HEADROOM.hypervisors.relist_seconds)
        return self._listed_at is None or database_now() - self._listed_at > age

    def _list(self, api: ObjectsApi, *, accepts_shrink: bool = False) -> ImportReport:
        self._moment = read_moment()
        began = database_now()
        objects: dict[str, Told] = {}
        stated: dict[str, Stated] = {}
        version = following = ""
        while not version or following:
            page = api.page(limit=settings.HEADROOM.hypervisors.page_objects, following=following)
            for body in page.objects:
                _hear(objects, stated, body)
            # All pages are of one version.
            version, following = version or page.version, page.following
        report = write_list(objects, actor=self._actor, accepts_shrink=accepts_shrink)
        LISTS_TOTAL.inc()
        self._objects, self._version, self._listed_at = objects, version, began
        self._before, self._stated = len(objects), stated
        self._pause_seconds = FIRST_PAUSE_SECONDS
        return report

    def _watch(self, api: ObjectsApi) -> None:
        """Write what a watch tells until it ends."""
        watch = api.watch(self._version)
        events: SimpleQueue[Json] = SimpleQueue()
        reader = threading.Thread(
            target=_read_on, args=(watch, events), name="hypervisor-watch", daemon=True
        )
        reader.start()
        try:
            while not self._until.is_set():
                batch = list(self._gathered(events))
                ended = batch.pop() if batch and isinstance(batch[-1], _Ended) else None
                if batch:
                    self._take(batch)
                if ended is not None:
                    ended.check()
                    return
        finally:
            watch.stop()
            reader.join()

    def _gathered(self, events: SimpleQueue[Json]) -> Iterator[Json]:
        """Yield what has come, after the first event some more; the end of the watch is last."""
        try:
            yield events.get(timeout=LOOK_SECONDS)
            self._until.wait(settings.HEADROOM.hypervisors.gather_seconds)
            while True:
                yield events.get_nowait()
        except Empty:
            return

    def _take(self, batch: list[Json]) -> None:
        """Write a batch of events, of each object the last.

        Raises:
            Expired: The server forgot what we ask for.
            ClusterUnavailable: It told of an error, or of no event.
            _OtherPast: The database has one now.
        """
        moment = read_moment()
        if not is_continued(self._moment, moment, reader="hypervisors"):
            raise _OtherPast
        self._moment = moment
        heard: dict[str, Told] = {}
        stated: dict[str, Stated] = {}
        gone: set[str] = set()
        version = self._version
        for event in batch:
            kind, body = event_of(event)
            EVENTS_TOTAL.labels(kind).inc()
            if kind == ERROR:
                raise error_of(body)
            if kind == DELETED:
                name = name_of(body)
                heard.pop(name, None)
                stated.pop(name, None)
                gone.add(name)
            elif kind != BOOKMARK:
                gone.discard(_hear(heard, stated, body))
            version = version_of(body) or version
        self._write(heard, gone & self._objects.keys())
        known = self._stated or {}
        kept = {name: known[name] for name in known.keys() - heard.keys() - gone}
        self._stated = kept | stated
        self._version = version
        self._pause_seconds = FIRST_PAUSE_SECONDS

    def _write(self, heard: dict[str, Told], gone: set[str]) -> None:
        changed = {name: told for name, told in heard.items() if self._objects.get(name) != told}
        objects = {name: told for name, told in self._objects.items() if name not in gone} | changed
        if changed or gone:
            write_changes(
                changed,
                names=objects.keys(),
                gone=bool(gone),
                before=self._before,
                actor=self._actor,
            )
        else:
            still_known(KIND)
        self._objects = objects

    def _note_failure(self, error: Exception) -> None:
        try:
            fail_pass(KIND, str(error))
        except Error as unwritten:
            log.warning("hypervisors_not_followed", error=str(unwritten))

    def _pause(self) -> None:
        """Wait, longer each time until something went well."""
        seconds = self._pause_seconds
        longest = settings.HEADROOM.hypervisors.longest_pause_seconds
        self._pause_seconds = min(2 * seconds, longest)
        self._until.wait(seconds * random.uniform(0.5, 1.0))  # noqa: S311 - spreads, hides nothing


def _hear(objects: dict[str, Told], stated: dict[str, Stated], body: Json) -> str:
    """Keep what an object says, of its host and in fields of ours; return its name."""
    name, told = told_by(body, len(objects))
    if isinstance(told, Malformed):
        MALFORMED_TOTAL.inc()
    if name:
        objects[name] = told
        stated.pop(name, None)
    if settings.HEADROOM.hypervisors.write_back and not isinstance(told, Malformed):
        stated[name] = stated_fields(object_node(body))
    return name


class _Ended:
    """The end of a watch."""

    def __init__(self, error: ClusterUnavailable | None) -> None:
        self._error = error

    def check(self) -> None:
        """Raise what ended it, if it did not end by itself."""
        if self._error is not None:
            raise self._error


def _read_on(watch: Watch, events: SimpleQueue[Json]) -> None:
    error = None
    try:
        for event in watch:
            events.put(event)
    except ClusterUnavailable as broken:
        error = broken
    finally:
        events.put(_Ended(error))
