"""Metrics of workers and of beat: a small HTTP server in the process that owns the role.

It tells what happened in the processes of the role and nothing of the database, which web processes
tell. That a port is taken does not stop the work: it is logged, and Prometheus misses the target.
"""

from __future__ import annotations

import threading
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Final

import structlog
from django.conf import settings
from prometheus_client import CONTENT_TYPE_LATEST

from journal.auth import BEARER, may_scrape
from journal.metrics import PageBusy, SharedPage, role_page

log = structlog.get_logger(__name__)

PATH: Final = "/metrics"
#: A scraper that sends nothing, or takes nothing, for so long is dropped.
CLIENT_SECONDS: Final = 5.0


class Exporter(ThreadingHTTPServer):
    """Tells the metrics of one role.

    Attributes:
        page: What it tells.
    """

    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 16

    def __init__(self, role: str, *, address: str, port: int) -> None:
        super().__init__((address, port), _Handler)
        self.page = SharedPage(lambda: role_page(role))


class _Handler(BaseHTTPRequestHandler):
    server: Exporter
    timeout = CLIENT_SECONDS
    server_version = "headroom"
    sys_version = ""

    def do_GET(self) -> None:
        """Answer a scrape."""
        if self.path.partition("?")[0] != PATH:
            self._answer(HTTPStatus.NOT_FOUND, b"not found\n")
        elif not self._may_scrape():
            self._answer(HTTPStatus.UNAUTHORIZED, b"unauthorized\n")
        else:
            self._tell()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the library's name
        """Log nothing of scrapes."""

    def _tell(self) -> None:
        try:
            page = self.server.page.get(keep_seconds=settings.HEADROOM.metrics.keep_seconds)
        except PageBusy as error:
            self._answer(HTTPStatus.SERVICE_UNAVAILABLE, error.message.encode())
        else:
            self._answer(HTTPStatus.OK, page, content_type=CONTENT_TYPE_LATEST)

    def _may_scrape(self) -> bool:
        scheme, _, offered = self.headers.get("Authorization", "").partition(" ")
        return may_scrape(offered.strip() if scheme.lower() == BEARER else "", is_open=True)

    def _answer(
        self, status: HTTPStatus, body: bytes, *, content_type: str = "text/plain; charset=utf-8"
    ) -> None:
        self.send_response(status)
        if status == HTTPStatus.UNAUTHORIZED:
            self.send_header("WWW-Authenticate", "Bearer")
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


_running: list[Exporter] = []


def start_exporter(role: str, *, port: int) -> Exporter | None:
    """Tell the metrics of this process's role from now on.

    Args:
        role: ``worker`` or ``beat``.
        port: Where to listen; 0 is nowhere.

    Returns:
        The server; None without a port, or when the port cannot be had.
    """
    if not port:
        return None
    address = settings.HEADROOM.metrics.listen_address
    try:
        exporter = Exporter(role, address=address, port=port)
    except OSError as error:
        log.exception("metrics_not_told", address=f"{address}:{port}", error=str(error))
        return None
    threading.Thread(target=exporter.serve_forever, name="metrics", daemon=True).start()
    _running.append(exporter)
    return exporter


def close_inherited_exporter() -> None:
    """Give the socket up in a forked child, which would keep the port after its parent's death."""
    while _running:
        _running.pop().socket.close()
