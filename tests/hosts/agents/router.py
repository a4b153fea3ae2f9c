"""A proxy as docs/hosts.md asks for one: polls go to who holds them; it can be cut, and listens."""

from __future__ import annotations

import http.client
import re
import threading
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

POLL = re.compile(r"/hosts/v1/[^/]+/reservations")
PATIENCE_SECONDS = 60.0


@dataclass(slots=True, kw_only=True)
class Routes:
    """Where requests go; none while ``is_cut``."""

    polls: int
    web: int
    is_cut: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Heard:
    """A request as it went by, and how it was answered."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes
    status: int
    answer: bytes

    def again(self, port: int, *, path: str = "", **headers: str) -> tuple[int, bytes]:
        """Send it to a port once more, changed; return status and content of the answer."""
        link = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_SECONDS)
        try:
            fields = {**self.headers, **{name.replace("_", "-"): headers[name] for name in headers}}
            link.request(self.method, path or self.path, body=self.body, headers=fields)
            answer = link.getresponse()
            return answer.status, answer.read()
        finally:
            link.close()


class Router(ThreadingHTTPServer):
    """The proxy; ``heard`` has the last requests."""

    daemon_threads = True

    def __init__(self, routes: Routes) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.routes = routes
        self.heard: deque[Heard] = deque(maxlen=1000)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    server: Router

    def handle_one_request(self) -> None:
        try:
            super().handle_one_request()
        except OSError:  # the agent has gone
            self.close_connection = True

    def _forward(self) -> None:
        routes = self.server.routes
        self.close_connection = True
        if routes.is_cut:
            return
        is_poll = self.command == "GET" and POLL.fullmatch(urlsplit(self.path).path)
        link = http.client.HTTPConnection(
            "127.0.0.1", routes.polls if is_poll else routes.web, timeout=PATIENCE_SECONDS
        )
        try:
            body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
            link.request(self.command, self.path, body=body, headers=dict(self.headers))
            answer = link.getresponse()
            content = answer.read()
        except (OSError, http.client.HTTPException):
            return
        finally:
            link.close()
        self.server.heard.append(
            Heard(
                method=self.command,
                path=self.path,
                headers=dict(self.headers),
                body=body,
                status=answer.status,
                answer=content,
            )
        )
        if routes.is_cut:
            return
        self.send_response(answer.status)
        for name in ("Content-Type", "Retry-After", "X-Last-Id"):
            if answer.headers[name]:
                self.send_header(name, answer.headers[name])
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    do_GET = do_PUT = do_POST = do_PATCH = do_DELETE = _forward  # noqa: N815 - the library's names

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the library's name
        """Log nothing."""


@contextmanager
def routed(routes: Routes) -> Iterator[Router]:
    """Route until the end of the block."""
    router = Router(routes)
    thread = threading.Thread(target=router.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield router
    finally:
        router.shutdown()
        router.server_close()
