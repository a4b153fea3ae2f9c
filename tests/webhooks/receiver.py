"""A receiver over real HTTP that answers as it is told, and keeps what it was sent."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Receiver:
    """Answers with ``statuses`` one by one, then 204; None hangs until it ends."""

    def __init__(self) -> None:
        self.statuses: list[int | None] = []
        self.bodies: list[bytes] = []
        self.headers: list[dict[str, str]] = []
        self.location = ""
        self.ended = threading.Event()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                outer.bodies.append(self.rfile.read(int(self.headers["Content-Length"])))
                outer.headers.append({key.lower(): text for key, text in self.headers.items()})
                status = outer.statuses.pop(0) if outer.statuses else 204
                if status is None:
                    outer.ended.wait(30)
                    return
                self.send_response(status)
                if outer.location:
                    self.send_header("Location", outer.location)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/hook?a=b"


@contextmanager
def receiving() -> Iterator[Receiver]:
    receiver = Receiver()
    thread = threading.Thread(target=receiver.server.serve_forever)
    thread.start()
    try:
        yield receiver
    finally:
        receiver.ended.set()
        receiver.server.shutdown()
        thread.join()
        receiver.server.server_close()
