"""Load from a process of its own: many connections, each asks again as soon as it is answered.

The load shares the cores with what it loads, so it is made to cost little: one thread, requests
that are made in advance, and of an answer only the status and the length are read.
"""

from __future__ import annotations

import multiprocessing
import random
import selectors
import socket
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from ctypes import c_long
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

ADDRESS = "127.0.0.1"
UUID = b"00000000-0000-4000-8000-000000000000"  # each request has another one in its place
STATUSES = 600
TICK_SECONDS = 0.05
NO_ANSWER = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What each connection asks for.

    Attributes:
        port: Where.
        connections: How many ask at once.
        request: The whole request, as it is sent.
        is_patient: Wait as long as a refusal says; else ask again at once.
        choices: Words of one length; each request has one of them in the place of the first.
    """

    port: int
    connections: int
    request: bytes
    is_patient: bool = False
    choices: tuple[bytes, ...] = (b"",)


def request_of(method: str, path: str, fields: Mapping[str, str], body: bytes = b"") -> bytes:
    """Return a request as it is sent."""
    names = {"Host": "localhost", **fields, "Content-Length": str(len(body))}
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {text}" for name, text in names.items())]
    return "\r\n".join((*lines, "", "")).encode() + body


@contextmanager
def load(asked: Asked) -> Iterator[Load]:
    """Ask until the end of the block."""
    context = multiprocessing.get_context("spawn")
    counts = context.Array(c_long, STATUSES, lock=False)
    process = context.Process(target=_ask, args=(asked, counts), daemon=True)
    process.start()
    try:
        yield Load(counts=counts)
    finally:
        process.kill()
        process.join(30.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What a load was answered until now."""

    counts: Any  # a ctypes array, without types

    def statuses(self) -> Counter[int]:
        """Return how many answers had which status; 0 is a connection that broke."""
        return Counter({status: n for status, n in enumerate(list(self.counts)) if n})

    def answered(self, status: int) -> int:
        """Return how many answers had a status."""
        return int(self.counts[status])


@dataclass(slots=True, kw_only=True)
class _Connection:
    asked: Asked
    link: socket.socket | None = None
    received: bytes = b""
    resumes_at: float = 0.0

    def ask(self) -> None:
        """Send the request, on a new connection if need be."""
        if self.link is None:
            self.link = socket.create_connection((ADDRESS, self.asked.port), timeout=30.0)
        self.received = b""
        choices = self.asked.choices
        request = self.asked.request.replace(choices[0], random.choice(choices))  # noqa: S311 - no secret
        self.link.sendall(request.replace(UUID, str(uuid4()).encode()))

    def read(self) -> int | None:
        """Return the status of the answer when it is whole."""
        assert self.link is not None
        part = self.link.recv(1 << 18)
        if not part:
            return self.broken()
        self.received += part
        head, found, body = self.received.partition(b"\r\n\r\n")
        if not found:
            return None
        fields = dict(
            line.split(b": ", 1) for line in head.lower().split(b"\r\n")[1:] if b": " in line
        )
        if len(body) < int(fields.get(b"content-length", 0)):
            return None
        wait_seconds = int(fields.get(b"retry-after", 0)) if self.asked.is_patient else 0
        self.resumes_at = time.monotonic() + wait_seconds if wait_seconds else 0.0
        if fields.get(b"connection") == b"close":
            self.broken()
        return int(head[9:12])

    def broken(self) -> int:
        """Forget the connection."""
        assert self.link is not None
        self.link.close()
        self.link = None
        return NO_ANSWER


def _ask(asked: Asked, counts: Any) -> None:  # Any: a ctypes array, without types
    """Be the process: ask and count until killed."""
    selector = selectors.DefaultSelector()
    resting = [_Connection(asked=asked) for _ in range(asked.connections)]
    while True:
        now = time.monotonic()
        due = [one for one in resting if one.resumes_at <= now]
        resting = [one for one in resting if one.resumes_at > now]
        for connection in due:
            try:
                connection.ask()
            except OSError:
                counts[NO_ANSWER] += 1
                connection.link = None
                connection.resumes_at = now + TICK_SECONDS
                resting.append(connection)
                continue
            assert connection.link is not None
            selector.register(connection.link, selectors.EVENT_READ, connection)
        for key, _ in selector.select(TICK_SECONDS if resting else None):
            connection = key.data
            link = key.fileobj
            try:
                status = connection.read()
            except OSError:
                status = connection.broken()
            if status is None:
                continue
            counts[status] += 1
            selector.unregister(link)
            resting.append(connection)
