"""Connections on which every wait ends at one moment.

The timeouts of sockets are for one read or write each: a service that sends a byte now and then
would hold a request for ever. Here each call may wait for what is left of the whole request.
"""

from __future__ import annotations

import select
import socket
import ssl
import time
from http.client import HTTPConnection
from typing import Any, Final

KEEP_ALIVE_SECONDS: Final = 30
#: How much of a body in a file goes out at once.
BLOCK_BYTES: Final = 1 << 18


class _Bounded:
    """Calls of a socket that wait until :attr:`deadline` at most.

    Attributes:
        deadline: Monotonic seconds.
    """

    deadline: float

    def recv_into(self, *arguments: Any) -> int:  # Any: as the socket has it
        self.settimeout(left_seconds(self.deadline))  # type: ignore[attr-defined]
        return int(super().recv_into(*arguments))  # type: ignore[misc]

    def send(self, *arguments: Any) -> int:  # Any: as the socket has it
        self.settimeout(left_seconds(self.deadline))  # type: ignore[attr-defined]
        return int(super().send(*arguments))  # type: ignore[misc]


class BoundedSocket(_Bounded, socket.socket):
    """A plain one."""

    def sendall(self, *arguments: Any) -> None:  # Any: as the socket has it
        """Send all of it; one wait bounds the whole call."""
        self.settimeout(left_seconds(self.deadline))
        super().sendall(*arguments)


class BoundedTlsSocket(_Bounded, ssl.SSLSocket):
    """One with TLS, which sends all by sending parts."""


def left_seconds(deadline: float) -> float:
    """Return the seconds until a deadline.

    Raises:
        TimeoutError: it has passed.
    """
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError("the deadline has passed")
    return left


class Link(HTTPConnection):
    """A connection that is used by one request after another.

    Attributes:
        idle_since: Monotonic seconds since which nobody uses it.
    """

    def __init__(
        self,
        host: str,
        port: int,
        *,
        tls: ssl.SSLContext | None,
        connect_seconds: float,
    ) -> None:
        super().__init__(host, port, blocksize=BLOCK_BYTES)
        self._tls = tls
        self._connect_seconds = connect_seconds
        self._deadline = 0.0
        self.idle_since = 0.0

    def begin_until(self, deadline: float) -> None:
        """Let every wait of the next request end at a moment, in monotonic seconds."""
        self._deadline = deadline
        sock: Any = self.sock  # Any: one of the two above
        if sock is not None:
            sock.deadline = deadline

    def connect(self) -> None:
        """Connect to the first address that answers, TLS included.

        Raises:
            OSError: none does.
        """
        until = min(self._deadline, time.monotonic() + self._connect_seconds)
        plain = _connected(self.host, self.port, until)
        try:
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            plain.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEP_ALIVE_SECONDS)
            link: Any = plain  # Any: which of the two
            if self._tls is not None:
                plain.settimeout(left_seconds(until))
                link = self._tls.wrap_socket(plain, server_hostname=self.host)
        except BaseException:
            plain.close()
            raise
        link.deadline = self._deadline
        self.sock = link

    def is_usable(self, *, idle_seconds: float) -> bool:
        """Return whether the other side may be expected to take a further request on it."""
        sock = self.sock
        if sock is None or time.monotonic() - self.idle_since > idle_seconds:
            return False
        # Whatever can be read while nothing was asked is the end, or answers nobody.
        poll = select.poll()
        poll.register(sock.fileno(), select.POLLIN)
        return not poll.poll(0)


def _connected(host: str, port: int, until: float) -> BoundedSocket:
    failure: OSError | None = None
    for family, kind, protocol, _, address in socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM
    ):
        sock = BoundedSocket(family, kind, protocol)
        try:
            sock.settimeout(left_seconds(until))
            sock.connect(address)
        except OSError as error:
            sock.close()
            failure = error
        else:
            return sock
    raise failure or OSError(f"{host} has no address")


def tls_context(*, ca_file: str, cert_file: str, key_file: str) -> ssl.SSLContext:
    """Return how a service is trusted, and how we show who we are.

    Raises:
        OSError: a file cannot be read, or is no certificate or key.
    """
    context = ssl.create_default_context(cafile=ca_file or None)
    context.sslsocket_class = BoundedTlsSocket
    if cert_file:
        context.load_cert_chain(cert_file, key_file or None)
    return context
