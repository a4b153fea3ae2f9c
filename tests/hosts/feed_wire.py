"""A live cloud behind real HTTP, whose services fail in every way that services do."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from hosts.clients.cloud import OpenStackCloud
from hosts.clients.listing import CloudUnreachable
from hosts.feed.lists import PassKind
from hosts.feed.passes import FULL_KINDS, run_pass
from hosts.region.run import ImportReport
from journal.actors import Actor
from tests.hosts.feed_cloud import LISTS, LiveCloud
from tests.hosts.mini_cloud import MiniCloud

Json = Any
Answer = tuple[int, Json]
PREFIXES = {"identity": "/v3", "compute": "/v2.1", "image": "/v2", "placement": ""}
#: No test waits longer than that for a service that does not answer.
PATIENCE_SECONDS = 60.0


def _half(elements: list[Json]) -> list[Json]:
    return elements[: len(elements) // 2]


def _doubled(elements: list[Json]) -> list[Json]:
    return [*elements, *elements]


def _with_elements(change: Callable[[list[Json]], Json]) -> Callable[[str, Json], Answer]:
    return lambda key, body: (200, {**body, key: change(body[key])})


#: What becomes of the answer of a list, by name of the fault.
FAULTS: dict[str, Callable[[str, Json], Answer]] = {
    "fails": lambda *_: (500, {"error": "no"}),
    "is away": lambda *_: (503, {}),
    "is not there": lambda *_: (404, {}),
    "may not be read": lambda *_: (403, {}),
    "is a web page": lambda *_: (200, b"<html>Please log in</html>"),
    "breaks off": lambda _, body: (200, json.dumps(body).encode()[:-20]),
    "is nothing": lambda *_: (200, b""),
    "has no list": lambda *_: (200, {}),
    "is no list": lambda key, _: (200, {key: "none"}),
    "is a list of something else": lambda key, _: (200, {key: [1, None]}),
    "is empty": _with_elements(lambda _: []),
    "is cut short": _with_elements(_half),
    "says all twice": _with_elements(_doubled),
    "tells nothing of each": _with_elements(lambda elements: [{} for _ in elements]),
}


class WiredCloud(MiniCloud):
    """The services of a live cloud.

    Attributes:
        cloud: What runs there.
        faults: Path of a list -> the faults of its next answers, one each. One that is away stays
            so, as it is asked again.
        is_silent: Whether nothing is answered until the end.
    """

    def __init__(self, cloud: LiveCloud) -> None:
        super().__init__()
        self.cloud = cloud
        self.faults: dict[str, list[str]] = {}
        self.is_silent = False
        self.is_over = threading.Event()

    def answer(self, target: str) -> Answer:
        _, service, *_ = target.split("/", 2)
        path = target.removeprefix(f"/{service}").removeprefix(PREFIXES[service])
        listed = urlsplit(path).path
        if not listed.strip("/"):
            return super().answer(target)
        if self.is_silent:
            self.is_over.wait(PATIENCE_SECONDS)
            return 200, {}
        try:
            body = self.cloud.get(service, path)
        except CloudUnreachable as error:
            return int(str(error.facts.get("answer", 500))), {}
        if listed in LISTS and body is not None and self.faults.get(listed):
            waiting = self.faults[listed]
            fault = waiting.pop(0)
            if not waiting and fault == "is away":
                waiting.append(fault)
            return FAULTS[fault](LISTS[listed][1], body)
        if body is None:
            return 404, {}
        return 200, body


def read_wire(*kinds: PassKind, timeout_seconds: float = 30.0) -> ImportReport:
    """Do passes as a worker does, with a session of its own; return the last report."""
    reader = OpenStackCloud("mini", timeout_seconds=timeout_seconds)
    for kind in kinds or FULL_KINDS:
        report = run_pass(kind, cloud=reader, actor=Actor(name="feed"), request_id="req-feed")
    return report


@contextmanager
def silent(wired: WiredCloud) -> Iterator[None]:
    """Have the cloud answer nothing for a while."""
    wired.is_silent = True
    try:
        yield
    finally:
        wired.is_silent = False
        wired.is_over.set()
