"""What a host's agent has made, again and again (spec hosts, B.8, D.6)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, Final

import orjson
from django.http import HttpResponse, StreamingHttpResponse
from django.http.response import HttpResponseBase
from rest_framework.request import Request

from core.api import ProblemView
from core.prepared import drop_dead_connection
from hosts.agents.errors import NoAgent
from hosts.agents.models import HostAgent
from hosts.agents.observed import expected_of
from journal.auth import RULE_API_READ
from journal.clock import database_now
from journal.errors import HeadroomError

EVERY_SECONDS: Final = 2.0
#: Then the stream ends, and who reads it asks again: a thread is held meanwhile.
MOST_EVENTS: Final = 15
MOST_STREAMS: Final = 2
_streams = threading.BoundedSemaphore(MOST_STREAMS)


class TooManyStreams(HeadroomError):  # noqa: N818 - a state of the process
    """This process tells as many counters as it may."""

    code = "too_many_streams"
    status = 429


class CountersView(ProblemView):
    """``GET /api/v1/hosts/NAME/counters``: an event every two seconds, for half a minute."""

    rule: ClassVar[str] = RULE_API_READ
    http_method_names = ["get"]
    path_label = "/api/v1/hosts/{name}/counters"
    wait: ClassVar[Callable[[threading.Event, float], bool]] = threading.Event.wait

    def get(self, request: Request, name: str) -> HttpResponseBase:
        """Return the stream.

        Raises:
            NoAgent: None of the host enrolled, or it was decommissioned.
            TooManyStreams: As many are told already.
        """
        if not name.isprintable():
            raise NoAgent(name)
        first = _event(counters_of(name))
        if not _streams.acquire(blocking=False):
            raise TooManyStreams(f"{MOST_STREAMS} streams are open in this process")
        answer = StreamingHttpResponse(
            _Stream(name, first, type(self).wait), content_type="text/event-stream"
        )
        answer["Cache-Control"] = "private, no-store"
        answer["X-Accel-Buffering"] = "no"
        return answer

    def refusal(self, error: Exception, status: int) -> HttpResponse:
        """Return the problem; who comes too soon is told when to come again."""
        answer = super().refusal(error, status)
        if isinstance(error, TooManyStreams):
            answer["Retry-After"] = str(int(MOST_EVENTS * EVERY_SECONDS))
        return answer


class _Stream:
    """Events of a stream; its place is given back when it ends or nobody reads it any more."""

    def __init__(
        self, name: str, first: bytes, wait: Callable[[threading.Event, float], bool]
    ) -> None:
        self._events = _events(name, first, wait)
        self._closing = threading.Lock()
        self._is_open = True

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        try:
            return next(self._events)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Give the place back, once."""
        with self._closing:
            if self._is_open:
                self._is_open = False
                _streams.release()


def _events(
    name: str, first: bytes, wait: Callable[[threading.Event, float], bool]
) -> Iterator[bytes]:
    yield f"retry: {int(EVERY_SECONDS * 1000)}\n\n".encode() + first
    pause = threading.Event()
    for _ in range(MOST_EVENTS - 1):
        wait(pause, EVERY_SECONDS)
        drop_dead_connection()
        try:
            yield _event(counters_of(name))
        except NoAgent:
            return


def _event(document: dict[str, Any]) -> bytes:  # Any: JSON
    return b"event: counters\ndata: " + orjson.dumps(document) + b"\n\n"


def counters_of(host_name: str) -> dict[str, Any]:  # Any: JSON
    """Return what an agent says that it has made, and what it told us that it made.

    Raises:
        NoAgent: None of the host enrolled, or it was decommissioned.
    """
    known = HostAgent.objects.filter(host_name=host_name, decommissioned_at__isnull=True)
    agent = known.only("stats", "stats_at", "stats_drift").first()
    if agent is None:
        raise NoAgent(host_name)
    said = agent.stats or {"units": {}, "workloads": {}}
    return {
        "at": database_now().isoformat(),
        "expected": expected_of(agent),
        "said": said,
        "said_at": None if agent.stats_at is None else agent.stats_at.isoformat(),
        "drift": agent.stats_drift or {},
    }
