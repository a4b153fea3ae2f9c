"""A link to a server that can be cut before a request arrives, or before its answer comes back."""

from __future__ import annotations

import http.client
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self

ADDRESS = "127.0.0.1"
KEPT = (
    "content-type",
    "location",
    "openstack-api-version",
    "last-modified",
    "cache-control",
    "x-openstack-request-id",
)


class CutLink:
    """Hands requests on to a port of this machine.

    Attributes:
        port: Where it listens.
        cuts: Method and what becomes of its requests: ``lost`` do not arrive, the answers of
            ``unheard`` do not come back, ``late`` ones arrive when ``let_through`` is set.
        seen: Methods and paths, in their order.
        headers: Of the same requests, names in small letters.
        replies: Status and body of what is answered here, by path.
    """

    def __init__(self, target_port: int) -> None:  # noqa: C901 - a server in a function
        self.cuts: dict[str, str] = {}
        self.seen: list[tuple[str, str]] = []
        self.headers: list[dict[str, str]] = []
        self.replies: dict[str, tuple[int, bytes]] = {}
        self.let_through = threading.Event()
        self.late_done = threading.Event()
        link = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: Any) -> None:
                pass

            def answer(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                link.seen.append((self.command, self.path))
                link.headers.append({k.lower(): v for k, v in self.headers.items()})
                cut = link.cuts.get(self.command)
                self.close_connection = True
                given = link.reply_to(self.path)
                if given is not None:
                    self.reply(*given)
                    return
                if cut == "lost":
                    return
                if cut == "late":
                    link.let_through.wait()
                peer = http.client.HTTPConnection(ADDRESS, target_port, timeout=60)
                headers = {k: v for k, v in self.headers.items() if k.lower() != "connection"}
                peer.request(self.command, self.path, body=body or None, headers=headers)
                response = peer.getresponse()
                content = response.read()
                peer.close()
                if cut == "late":
                    link.late_done.set()
                if cut in {"unheard", "late"}:
                    return
                self.send_response(response.status, response.reason)
                for name, text in response.getheaders():
                    if name.lower() in KEPT:
                        self.send_header(name, text)
                if response.status != 204:
                    self.send_header("Content-Length", str(len(content)))
                self.send_header("Connection", "close")
                self.end_headers()
                self.wfile.write(content)

            def reply(self, status: int, body: bytes) -> None:
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            do_GET = do_PUT = do_POST = do_DELETE = do_OPTIONS = answer  # noqa: N815 - as named

        self._server = ThreadingHTTPServer((ADDRESS, 0), Handler)
        self._server.daemon_threads = True
        self.port: int = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    def reply_to(self, path: str) -> tuple[int, bytes] | None:
        """Return what is answered here to a path below the mount point, without its query."""
        return self.replies.get(path.removeprefix("/placement").partition("?")[0])

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        del kind, error, trace
        self.let_through.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
