"""A TCP proxy that passes on what it gets, or holds the answers back until it is told to."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from socketserver import BaseRequestHandler, ThreadingTCPServer
from typing import Any

CHUNK_BYTES = 65536


@dataclass
class SlowProxy:
    """Stands before a server on the loopback.

    Attributes:
        target_port: Where the server listens.
        held: Chunks of requests that were passed on while answers were held back.
    """

    target_port: int
    held: list[bytes] = field(default_factory=list)
    flowing: threading.Event = field(default_factory=threading.Event)
    server: Any = None

    @property
    def port(self) -> int:
        return int(self.server.server_address[1])

    def hold(self) -> None:
        """From now on nobody gets an answer."""
        self.flowing.clear()

    def release(self) -> None:
        self.flowing.set()

    def to_server(self, source: socket.socket, sink: socket.socket) -> None:
        while chunk := source.recv(CHUNK_BYTES):
            if not self.flowing.is_set():
                self.held.append(chunk)
            sink.sendall(chunk)

    def to_client(self, source: socket.socket, sink: socket.socket) -> None:
        while chunk := source.recv(CHUNK_BYTES):
            self.flowing.wait()
            sink.sendall(chunk)


class _Handler(BaseRequestHandler):
    proxy: SlowProxy

    def handle(self) -> None:
        proxy, client = self.proxy, self.request
        with socket.create_connection(("127.0.0.1", proxy.target_port)) as server:

            def answers() -> None:
                with suppress(OSError):
                    proxy.to_client(server, client)
                with suppress(OSError):
                    client.shutdown(socket.SHUT_WR)

            back = threading.Thread(target=answers, daemon=True)
            back.start()
            with suppress(OSError):
                proxy.to_server(client, server)
            with suppress(OSError):
                server.shutdown(socket.SHUT_WR)
            back.join()


@contextmanager
def slow_proxy(target_port: int) -> Iterator[SlowProxy]:
    """Run a proxy that lets everything through at first."""
    proxy = SlowProxy(target_port)
    proxy.release()
    handler = type("Handler", (_Handler,), {"proxy": proxy})

    class Server(ThreadingTCPServer):
        daemon_threads = True
        allow_reuse_address = True

    proxy.server = Server(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=proxy.server.serve_forever, daemon=True)
    thread.start()
    try:
        yield proxy
    finally:
        proxy.release()
        proxy.server.shutdown()
        proxy.server.server_close()
        thread.join()
