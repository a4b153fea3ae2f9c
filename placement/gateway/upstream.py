"""The client of the other Placement (spec placement, 8.7).

It hands on bytes: neither bodies nor queries are read, and a body in a file goes out in pieces. A
request ends at its deadline, however the other side behaves, and what has no answer is told as 502,
503 or 504.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from http.client import HTTPException, HTTPResponse
from io import BytesIO
from tempfile import TemporaryFile
from typing import IO, Final
from urllib.parse import urlsplit

import structlog

from placement.domain.errors import (
    UpstreamAway,
    UpstreamFailed,
    UpstreamTooSlow,
    UpstreamUnreachable,
)
from placement.gateway.circuit import Circuit
from placement.gateway.headers import Header
from placement.gateway.links import Link, tls_context

log = structlog.get_logger(__name__)

#: Methods that may be sent twice: they change nothing.
SAFE: Final = frozenset({"GET", "HEAD", "OPTIONS"})
PIECE_BYTES: Final = 1 << 20
#: Of a request.
Body = bytes | IO[bytes]
PORTS: Final = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True, kw_only=True)
class UpstreamOptions:
    """Where the other Placement is, and how long it may take.

    Attributes:
        url: Its root, without a slash at the end.
        timeout_seconds: Longest time for a whole request, all tries included.
        connect_seconds: Longest time for a connection.
        idle_seconds: How long an idle connection is used again.
        most_idle: Idle connections that are kept.
        most_failures: Failures in a row after which it is left alone.
        open_seconds: For how long.
        most_answer_bytes: Largest body of an answer that is taken.
    """

    url: str
    timeout_seconds: float
    connect_seconds: float
    idle_seconds: float
    most_idle: int
    most_failures: int
    open_seconds: float
    most_answer_bytes: int
    ca_file: str = ""
    cert_file: str = ""
    key_file: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class UpstreamAnswer:
    """What the other side answered, whole.

    Attributes:
        body: The bytes as sent; empty if they are in a file.
        file: Has them, at its beginning; gone with the last who has it open.
    """

    status: int
    reason: str
    headers: Sequence[Header]
    body: bytes
    file: IO[bytes] | None = None


class _LinkBrokenError(Exception):
    """The connection ended before the answer, or the answer cannot be taken."""


class _NotConnectedError(OSError):
    """There is no connection, so that nothing was sent."""


class Upstream:
    """Sends requests to the other Placement; threads may share it.

    Args:
        options: Where it is.

    Raises:
        OSError: a certificate cannot be read.
    """

    def __init__(self, options: UpstreamOptions) -> None:
        parts = urlsplit(options.url)
        self._options = options
        self._host = parts.hostname or ""
        self._port = parts.port or PORTS[parts.scheme]
        self._authority = parts.netloc
        self._path = parts.path.rstrip("/")
        self._tls = (
            tls_context(
                ca_file=options.ca_file, cert_file=options.cert_file, key_file=options.key_file
            )
            if parts.scheme == "https"
            else None
        )
        self._idle: deque[Link] = deque(maxlen=options.most_idle)
        self._lock = threading.Lock()
        self._circuit = Circuit(
            most_failures=options.most_failures,
            open_seconds=options.open_seconds,
            clock=time.monotonic,
        )

    def send(
        self,
        method: str,
        target: str,
        *,
        headers: Sequence[Header],
        body: Body = b"",
        until: float = math.inf,
        spools: bool = False,
    ) -> UpstreamAnswer:
        """Return what the other side answers, whatever its status.

        What is safe is sent a second time over a new connection when the first one broke; what
        writes never is, since nobody knows whether it was done.

        Args:
            method: Of the request.
            target: Path below its root, with its query, quoted; begins with a slash.
            headers: As they go on; ``Host`` is said here.
            body: The bytes, or a file that has them; the headers say how many.
            until: Monotonic seconds when it ends though it had more time.
            spools: Whether a large body goes to a file instead of memory.

        Raises:
            UpstreamFailed: there is no answer, or a part of one.
            UpstreamUnreachable: it takes no connection.
            UpstreamTooSlow: there is none until the deadline.
            UpstreamAway: it failed often, and nobody tries now.
        """
        wait_seconds = self._circuit.wait_seconds()
        if wait_seconds:
            raise UpstreamAway(
                f"{self._authority} does not answer; it is tried again in {wait_seconds:.0f} s",
                headers={"Retry-After": str(max(1, round(wait_seconds)))},
            )
        deadline = min(until, time.monotonic() + self._options.timeout_seconds)
        try:
            answer = self._sent(method, target, headers, body, (deadline, spools))
        except TimeoutError as error:
            self._circuit.failed()
            if time.monotonic() < deadline:
                raise UpstreamUnreachable(f"{self._authority} takes no connection") from error
            raise UpstreamTooSlow(
                f"no answer of {self._authority} within {self._options.timeout_seconds:g} s"
            ) from error
        except (OSError, HTTPException, _LinkBrokenError) as error:
            self._circuit.failed()
            told = str(error) or type(error).__name__
            kind = UpstreamUnreachable if isinstance(error, _NotConnectedError) else UpstreamFailed
            raise kind(f"{self._authority}: {told}") from error
        self._circuit.succeeded()
        return answer

    def close(self) -> None:
        """End the idle connections."""
        while self._idle:
            self._idle.popleft().close()

    def _sent(
        self,
        method: str,
        target: str,
        headers: Sequence[Header],
        body: Body,
        taking: tuple[float, bool],
    ) -> UpstreamAnswer:
        link = self._usable_link()
        try:
            return self._exchange(link, method, target, headers, body, taking)
        except TimeoutError:
            raise
        except (OSError, HTTPException, _LinkBrokenError):
            if method not in SAFE:
                raise
        return self._exchange(self._new_link(), method, target, headers, body, taking)

    def _exchange(  # noqa: PLR0917 - a request in its parts
        self,
        link: Link,
        method: str,
        target: str,
        headers: Sequence[Header],
        body: Body,
        taking: tuple[float, bool],
    ) -> UpstreamAnswer:
        deadline, spools = taking
        link.begin_until(deadline)
        try:
            _connect(link)
            link.putrequest(
                method, f"{self._path}{target}", skip_host=True, skip_accept_encoding=True
            )
            link.putheader("Host", self._authority)
            for name, text in headers:
                link.putheader(name, text)
            if not isinstance(body, bytes):
                body.seek(0)  # it may be the second try
            link.endheaders(body or None)
            with link.getresponse() as response:
                answer = _whole(response, self._options.most_answer_bytes, spools=spools)
        except TimeoutError as error:
            link.close()
            if error.errno is None:
                raise
            raise _LinkBrokenError(str(error)) from error  # the system gave it up, no clock of ours
        except BaseException:
            link.close()
            raise
        if link.sock is not None:
            self._keep(link)
        return answer

    def _usable_link(self) -> Link:
        while True:
            with self._lock:
                link = self._idle.pop() if self._idle else None
            if link is None:
                return self._new_link()
            if link.is_usable(idle_seconds=self._options.idle_seconds):
                return link
            link.close()

    def _new_link(self) -> Link:
        return Link(
            self._host,
            self._port,
            tls=self._tls,
            connect_seconds=self._options.connect_seconds,
        )

    def _keep(self, link: Link) -> None:
        link.idle_since = time.monotonic()
        with self._lock:
            surplus = self._idle.popleft() if len(self._idle) == self._idle.maxlen else None
            self._idle.append(link)
        if surplus is not None:
            surplus.close()


def _connect(link: Link) -> None:
    """Connect what is not connected yet.

    Raises:
        TimeoutError: it took too long.
        _NotConnectedError: nobody answers.
    """
    if link.sock is not None:
        return
    try:
        link.connect()
    except OSError as error:
        if isinstance(error, TimeoutError) and error.errno is None:
            raise
        raise _NotConnectedError(str(error) or type(error).__name__) from error


def _whole(response: HTTPResponse, most_bytes: int, *, spools: bool) -> UpstreamAnswer:
    """Return an answer with all of its body.

    Raises:
        _LinkBrokenError: the body ends early, or is too large.
    """
    taken: IO[bytes] = BytesIO()
    length_bytes = 0
    with ExitStack() as undone:
        while piece := response.read(PIECE_BYTES):
            if spools and not length_bytes and len(piece) == PIECE_BYTES:
                taken = undone.enter_context(_file())
            length_bytes += len(piece)
            if length_bytes > most_bytes:
                raise _LinkBrokenError(f"the answer has more than {most_bytes >> 20} MiB")
            taken.write(piece)
        if response.length:
            raise _LinkBrokenError(f"the answer ended {response.length} bytes early")
        undone.pop_all()
    is_in_memory = isinstance(taken, BytesIO)
    return UpstreamAnswer(
        status=response.status,
        reason=response.reason,
        headers=response.getheaders(),
        body=taken.getvalue() if isinstance(taken, BytesIO) else b"",
        file=None if is_in_memory else taken,
    )


def _file() -> IO[bytes]:
    """Return a file without a name; memory where none can be made."""
    try:
        return TemporaryFile()
    except OSError as error:
        log.warning("gateway_answer_in_memory", error=str(error))
        return BytesIO()
