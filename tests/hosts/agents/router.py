"""A proxy as docs/hosts.md asks for one: polls go to who holds them; it can be cut."""

from __future__ import annotations

import http.client
import re
import threading
from collections.abc import Iterator
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


class Router(ThreadingHTTPServer):
    """The proxy."""

    daemon_threads = True

    def __init__(self, routes: Routes) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.routes = routes

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
        if routes.is_cut:
            return
        self.send_response(answer.status)
        for name in ("Content-Type", "Retry-After", "X-Last-Id"):
            if answer.headers[name]:
                self.send_header(name, answer.headers[name])
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    do_GET = do_PUT = do_POST = do_DELETE = _forward  # noqa: N815 - the library's names

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
