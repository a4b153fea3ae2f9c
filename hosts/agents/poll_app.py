"""The application of ``./run serve agents``: it holds polls of agents (spec hosts, D.7).

One event loop has all polls that wait. What asks the database runs in a few threads, each with a
connection that no poll keeps while it waits. Polls are verified and first looked at together, as
many as came while others were. One for whose host there is something, or that is refused, is
answered by the view that web processes have. The others are held, and before one is answered it is
looked whether its host still stands as then; one statement looks for all that ask at the time.
"""

from __future__ import annotations

import asyncio
import io
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any, Final, TypeVar
from uuid import UUID

import orjson
import structlog
from django.conf import settings
from django.core.handlers.asgi import ASGIRequest
from django.db import DatabaseError, close_old_connections
from django.http import HttpResponse
from prometheus_client import Gauge, Histogram

from hosts.agents.hearing import Ear
from hosts.agents.holding import Ended, Holder, Standing
from hosts.agents.poll_views import (
    EmptyPoll,
    HeldReservationsView,
    KnownPoll,
    first_looks,
    held_poll,
    standings,
    tell,
)
from hosts.agents.signed import SentRequest
from hosts.agents.together import Together
from hosts.agents.workload_views import page_answer
from journal.health import check_ready, shown_checks
from journal.metrics import metric_name
from journal.middleware import RequestIDMiddleware, with_request_id

log = structlog.get_logger(__name__)

Scope = dict[str, Any]  # Any: as ASGI has them
Receive = Callable[[], Awaitable[Mapping[str, Any]]]
Send = Callable[[Mapping[str, Any]], Awaitable[None]]
Headers = Sequence[tuple[bytes, bytes]]
Answer = tuple[int, Headers, bytes]
Value = TypeVar("Value")

POLL: Final = re.compile(r"/hosts/v1/([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})/reservations")
MOST_BODY_BYTES: Final = 64 << 10
BODY_SECONDS: Final = 10.0
READY_SECONDS: Final = 3.0
#: Polls that may wait for a thread; more come again.
MOST_BEGUN: Final = 2000
#: Polls that are looked at together.
MOST_TOGETHER: Final = 200
#: How often all hosts are looked at, while wakes are heard and while they are not.
LOOK_SECONDS: Final = 10.0
LOOK_DEAF_SECONDS: Final = 1.0
COME_AGAIN_SECONDS: Final = b"2"
JSON: Final = (b"content-type", b"application/json")
RETRY: Final = (b"retry-after", COME_AGAIN_SECONDS)
CLOSE: Final = (b"connection", b"close")
NEVER_CACHE: Final = (b"cache-control", b"no-store")

WAITERS: Final = Gauge(
    metric_name("host_poll_waiters"),
    "Polls of agents that are held.",
    multiprocess_mode="mostrecent",
)
SECONDS: Final = Histogram(
    metric_name("host_poll_seconds"),
    "Time from a poll of an agent to its answer, where polls are held.",
    buckets=(0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 30, float("inf")),
)


class PollApp:
    """An ASGI application.

    Args:
        most: Polls that are held at once.
        threads: Threads that ask the database, each with a connection.
    """

    def __init__(self, *, most: int, threads: int) -> None:
        # Whoever has waited does not wait again, behind those who begin.
        self._first = ThreadPoolExecutor(threads, thread_name_prefix="polls")
        self._again = ThreadPoolExecutor(2, thread_name_prefix="news")
        self._looks = Together(self._look_first, most=MOST_TOGETHER)
        self._probes = ThreadPoolExecutor(1, thread_name_prefix="probes")
        self._holder = Holder(self._look, most=most)
        self._ear = Ear(settings.REDIS_URL, wake=self._holder.wake, opened=self._open_eyes)
        self._eyes = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._begun = self._running = 0
        self._is_stopping = False
        self._view: Callable[..., HttpResponse] = HeldReservationsView.as_view()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, or the life of the server."""
        if scope["type"] == "lifespan":
            await self._live(receive, send)
            return
        self._running += 1
        try:
            status, headers, body = await self._answered(scope, receive)
        except Exception:
            log.exception("poll_crashed")
            status, headers, body = refusal(503, "unavailable", "come again", RETRY)
        finally:
            self._running -= 1
        more = [CLOSE] if self._is_stopping else []
        length = (b"content-length", str(len(body)).encode())
        await send(
            {
                "type": "http.response.start",
                "status": status,
                "headers": [*headers, length, *more],
            }
        )
        await send({"type": "http.response.body", "body": body})

    async def stop(self, patience_seconds: float) -> None:
        """Answer all polls that are held, hold none from now on, and wait for those under way."""
        self._is_stopping = True
        self._holder.stop()
        until = asyncio.get_running_loop().time() + patience_seconds
        while self._running and asyncio.get_running_loop().time() < until:
            await asyncio.sleep(0.02)

    async def _live(self, receive: Receive, send: Send) -> None:
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                self._tasks = [
                    asyncio.create_task(self._ear.listen()),
                    asyncio.create_task(self._look_on()),
                ]
                await send({"type": "lifespan.startup.complete"})
            else:
                for task in self._tasks:
                    task.cancel()
                await asyncio.gather(*self._tasks, return_exceptions=True)
                for pool in (self._first, self._again, self._probes):
                    pool.shutdown(wait=False, cancel_futures=True)
                await send({"type": "lifespan.shutdown.complete"})
                return

    async def _answered(self, scope: Scope, receive: Receive) -> Answer:
        path = scope["path"]
        if path in {"/livez", "/healthz"}:
            page = {"live": True, "waiters": len(self._holder)}
            return 200, [JSON, NEVER_CACHE], orjson.dumps(page)
        if path == "/readyz":
            return await self._ready()
        match = POLL.fullmatch(path)
        if match is None:
            return refusal(404, "not_found", "only polls of agents are answered here")
        if scope["method"] != "GET":
            return refusal(405, "method_not_allowed", "polls are sent by GET", (b"allow", b"GET"))
        if self._begun >= MOST_BEGUN:
            return refusal(429, "too_many_polls", "too many polls at once", RETRY)
        began_at = asyncio.get_running_loop().time()
        try:
            return await self._polled(scope, receive, UUID(match[1]), began_at)
        finally:
            SECONDS.observe(asyncio.get_running_loop().time() - began_at)

    async def _polled(
        self, scope: Scope, receive: Receive, host_id: UUID, began_at: float
    ) -> Answer:
        body = await _body(receive)
        if body is None:
            return refusal(413, "body_too_large", "the body is too large or too slow", CLOSE)
        try:
            sent = _sent(scope, body, host_id)
        except ValueError:  # a query that is no text
            return refusal(400, "invalid_poll", "the request is malformed")
        self._begun += 1
        try:
            known = await self._looks.ask(sent)
        except DatabaseError as error:
            log.warning("polls_not_looked_at", error=str(error))
            return refusal(503, "database_unavailable", "the database does not answer", RETRY)
        finally:
            self._begun -= 1
        assert known is not None  # noqa: S101 - something is known of each
        if not isinstance(known, EmptyPoll):
            return await self._asked(self._first, scope, host_id, known)
        return await self._held(scope, sent, known, began_at)

    async def _held(
        self, scope: Scope, sent: SentRequest, empty: EmptyPoll, began_at: float
    ) -> Answer:
        ended = Ended.QUIET
        if empty.wait_seconds:
            WAITERS.set(len(self._holder) + 1)
            try:
                ended = await self._holder.hold(held_poll(empty, began_at=began_at))
            except DatabaseError as error:
                log.warning("held_poll_not_looked_at", error=str(error))
                return refusal(503, "database_unavailable", "the database does not answer", RETRY)
            finally:
                WAITERS.set(len(self._holder))
        if ended is Ended.NEWS:
            return await self._asked(self._again, scope, sent.path_id, empty)
        more = [RETRY] if ended is Ended.FULL else []
        return _answer(with_request_id(page_answer(empty.page), sent.headers), *more)

    async def _asked(
        self, pool: ThreadPoolExecutor, scope: Scope, host_id: UUID, known: KnownPoll
    ) -> Answer:
        """Have the view answer a poll of which something is known."""
        request = ASGIRequest(scope, io.BytesIO())
        tell(request, known)
        view = RequestIDMiddleware(partial(self._view, host_id=host_id))
        return _answer(await _in_thread(pool, partial(view, request)))

    async def _look_first(self, requests: Sequence[SentRequest]) -> Mapping[SentRequest, KnownPoll]:
        return await _in_thread(self._first, partial(first_looks, requests))

    async def _look(self, kids: Sequence[str]) -> Mapping[str, Standing]:
        return await _in_thread(self._again, partial(standings, list(kids)))

    def _open_eyes(self) -> None:
        """Look at all at once: what was said before we heard is not known."""
        self._eyes.set()

    async def _look_on(self) -> None:
        while True:
            seconds = LOOK_SECONDS if self._ear.is_open else LOOK_DEAF_SECONDS
            with suppress(TimeoutError):
                await asyncio.wait_for(self._eyes.wait(), seconds)
            self._eyes.clear()
            try:
                await self._holder.look_at_all()
            except DatabaseError as error:
                log.warning("held_polls_not_looked_at", error=str(error))

    async def _ready(self) -> Answer:
        looking = _in_thread(self._probes, lambda: shown_checks(check_ready()))
        try:
            is_ready, page = await asyncio.wait_for(looking, READY_SECONDS)
        except TimeoutError:
            is_ready, page = False, {"ready": False, "checks": {}}
        status = 200 if is_ready and not self._is_stopping else 503
        return status, [JSON, NEVER_CACHE], orjson.dumps(page)


def _sent(scope: Scope, body: bytes, host_id: UUID) -> SentRequest:
    """Return a request as it came.

    Raises:
        ValueError: Its query is no text.
    """
    headers: dict[str, str] = {}
    for raw_name, raw_text in scope["headers"]:
        name, text = raw_name.decode("latin-1").lower(), raw_text.decode("latin-1")
        headers[name] = f"{headers[name]},{text}" if name in headers else text
    return SentRequest(
        method=scope["method"],
        path=scope["path"],
        query=scope.get("query_string", b"").decode(),
        headers=headers,
        body=body,
        path_id=host_id,
    )


def _answer(response: HttpResponse, *more: tuple[bytes, bytes]) -> Answer:
    headers = [
        (name.lower().encode("latin-1"), text.encode("latin-1")) for name, text in response.items()
    ]
    return response.status_code, [*headers, *more], bytes(response.content)


def refusal(status: int, code: str, message: str, *headers: tuple[bytes, bytes]) -> Answer:
    """Return an answer in the shape that agents get."""
    content = orjson.dumps({"error": {"code": code, "message": message}})
    return status, [JSON, *headers], content


async def _body(receive: Receive) -> bytes | None:
    """Return the body of a request; None when it is too large, too slow, or does not come."""
    parts: list[bytes] = []
    length_bytes = 0
    until = asyncio.get_running_loop().time() + BODY_SECONDS
    while True:
        left_seconds = until - asyncio.get_running_loop().time()
        try:
            message = await asyncio.wait_for(receive(), left_seconds)
        except TimeoutError:
            return None
        if message["type"] == "http.disconnect":
            return None
        parts.append(message.get("body", b""))
        length_bytes += len(parts[-1])
        if length_bytes > MOST_BODY_BYTES:
            return None
        if not message.get("more_body", False):
            return b"".join(parts)


async def _in_thread(pool: ThreadPoolExecutor, work: Callable[[], Value]) -> Value:
    return await asyncio.get_running_loop().run_in_executor(pool, _with_own_connection, work)


def _with_own_connection(work: Callable[[], Value]) -> Value:
    """Work on the connection of this thread, if it is still one."""
    close_old_connections()
    try:
        return work()
    finally:
        close_old_connections()
