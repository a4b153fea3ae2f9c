"""An HTTP server on a real socket that misbehaves as the last word of the path says."""

from __future__ import annotations

import hashlib
import socket
import ssl
import threading
from contextlib import suppress
from types import TracebackType
from typing import IO, Final, Self

LARGE_BYTES: Final = 32 << 20
LARGE_PIECE: Final = bytes(range(256)) * 256
OK: Final = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n"
ANSWERS: Final = {
    "fine": OK + b"Content-Length: 2\r\n\r\nok",
    "chunked": OK + b"Transfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
    "until-the-end": OK + b"Connection: close\r\n\r\nok",
    "error": b"HTTP/1.1 500 Broken\r\nContent-Length: 4\r\nX-Odd: 1\r\nX-Odd: 2\r\n\r\noops",
    "no-http": b"what?\r\n\r\n",
    "dies": b"",
    "dies-in-body": OK + b"Content-Length: 20\r\n\r\nok",
    "dies-in-chunk": OK + b"Transfer-Encoding: chunked\r\n\r\n20\r\nok",
    "redirect": b"HTTP/1.1 302 Found\r\nContent-Length: 0\r\nLocation: http://x/\r\n\r\n",
}
ENDS: Final = frozenset({"until-the-end", "no-http", "dies", "dies-in-body", "dies-in-chunk"})
TRICKLE_SECONDS: Final = 0.05


def _digest(lines: IO[bytes], length: int) -> str:
    found, left = hashlib.sha256(), length
    while left and (piece := lines.read(min(left, len(LARGE_PIECE)))):
        found.update(piece)
        left -= len(piece)
    return found.hexdigest()


class BadPeer:
    """The server; ends with its block.

    Attributes:
        asked: The first lines of the requests that came, in their order.
        requests: The requests that came, bytes up to the end of their headers.
        digests: SHA-256 of the bodies that came with them.
        connections: How many connections were taken.
        tls: How connections are secured; None is not at all.
    """

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.requests: list[bytes] = []
        self.digests: list[str] = []
        self.connections = 0
        self.tls: ssl.SSLContext | None = None
        self._ended = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._links: list[socket.socket] = []

    def __enter__(self) -> Self:
        self._threads[0].start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        del kind, error, trace
        self._ended.set()
        for link in [self._listener, *self._links]:
            with suppress(OSError):
                link.shutdown(socket.SHUT_RDWR)
            link.close()
        for thread in self._threads:
            thread.join()

    def end_connections(self) -> int:
        """End the connections that are open; return how many there were."""
        links, self._links = self._links, []
        for link in links:
            link.shutdown(socket.SHUT_RDWR)
        return len(links)

    def _accept(self) -> None:
        while True:
            try:
                link, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            if self.tls is not None:
                try:
                    link = self.tls.wrap_socket(link, server_side=True)
                except OSError:  # the client does not like it
                    continue
            self._links.append(link)
            thread = threading.Thread(target=self._serve, args=(link,), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _serve(self, link: socket.socket) -> None:
        with suppress(OSError), link, link.makefile("rb") as lines:
            while request := self._request(lines):
                word = request.split(b" ")[1].partition(b"?")[0].rsplit(b"/", 1)[-1].decode()
                if not self._answer(link, word):
                    link.shutdown(socket.SHUT_RDWR)
                    return

    def _request(self, lines: IO[bytes]) -> bytes:
        received, length = b"", 0
        while line := lines.readline():
            received += line
            if line.lower().startswith(b"content-length:"):
                length = int(line.partition(b":")[2])
            if line == b"\r\n":
                self.digests.append(_digest(lines, length))
                break
        if received:
            self.requests.append(received)
            self.asked.append(received.partition(b"\r\n")[0].decode())
        return received

    def _answer(self, link: socket.socket, word: str) -> bool:
        """Answer; return whether the connection stays."""
        if word == "large":
            link.sendall(OK + f"Content-Length: {LARGE_BYTES}\r\n\r\n".encode())
            for _ in range(LARGE_BYTES // len(LARGE_PIECE)):
                link.sendall(LARGE_PIECE)
        elif word == "silent":
            self._ended.wait()
        elif word.startswith("trickle"):
            link.sendall(OK + (b"Content-Length: 99999\r\n\r\n" if "body" in word else b""))
            while not self._ended.wait(TRICKLE_SECONDS):
                link.sendall(b"x")
        else:
            link.sendall(ANSWERS.get(word, ANSWERS["fine"]))
        return word not in ENDS
