"""One request to a receiver: within a deadline, to an address that was looked at, no redirects."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Self

import urllib3
from urllib3.exceptions import HTTPError

from webhooks.addresses import allowed_address, check_url

USER_AGENT = "headroom-webhooks"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a receiver said.

    Attributes:
        status: None where there was no answer.
        problem: Why it does not count as taken; empty if it does.
        retry_after_seconds: When it asks to be tried again.
    """

    status: int | None = None
    problem: str = ""
    retry_after_seconds: float | None = None


def send(url: str, body: bytes, headers: Mapping[str, str], *, timeout_seconds: float) -> Answer:
    """Post a body; what goes wrong is in the answer.

    Raises:
        AddressForbidden: the address is none that deliveries go to.
    """
    scheme, host, port, target = check_url(url)
    name = f"[{host}]" if ":" in host else host
    sent = {
        "Host": name if port in {80, 443} else f"{name}:{port}",
        "User-Agent": USER_AGENT,
        **headers,
    }
    try:
        address = allowed_address(host, port)
        pool = (
            urllib3.HTTPSConnectionPool(address, port, server_hostname=host, assert_hostname=host)
            if scheme == "https"
            else urllib3.HTTPConnectionPool(address, port)
        )
        with _Deadline(timeout_seconds) as deadline, pool:
            deadline.watch(pool)
            response = pool.urlopen(
                "POST",
                target,
                body=body,
                headers=sent,
                redirect=False,
                retries=False,
                timeout=urllib3.Timeout(total=timeout_seconds),
                preload_content=False,
            )
            response.close()  # its words are nobody's
            deadline.check()
    except (HTTPError, OSError, UnicodeError) as error:
        return Answer(problem=f"no answer: {error}"[:500])
    if 200 <= response.status < 300:  # noqa: PLR2004 - of HTTP
        return Answer(status=response.status)
    is_redirect = 300 <= response.status < 400  # noqa: PLR2004 - of HTTP
    problem = "redirects are not followed" if is_redirect else "refused"
    return Answer(
        status=response.status,
        problem=f"status {response.status}: {problem}",
        retry_after_seconds=_seconds(response.headers.get("Retry-After", "")),
    )


class _Deadline:
    """Cuts connections when the time is over: a timeout is of each read alone.

    A receiver that sends a byte now and then runs into none, and what it sent until it is cut may
    look like an answer.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._until = time.monotonic() + seconds
        self._sockets: list[socket.socket] = []
        self._timer = threading.Timer(seconds, self._cut)
        self._timer.daemon = True

    def __enter__(self) -> Self:
        self._timer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()

    def watch(self, pool: Any) -> None:  # Any: pools of the library differ in their type alone
        """Have connections that a pool opens from now on end in time."""
        deadline, kind = self, pool.ConnectionCls

        class Watched(kind):  # type: ignore[misc, valid-type]  # as above
            def connect(self) -> None:
                super().connect()
                deadline.add(self.sock)

        pool.ConnectionCls = Watched

    def add(self, opened: socket.socket) -> None:
        """Cut a connection when the time is over.

        Raises:
            TimeoutError: It is.
        """
        self._sockets.append(opened)
        self.check()

    def check(self) -> None:
        """Refuse what came too late.

        Raises:
            TimeoutError: The time is over.
        """
        if time.monotonic() >= self._until:
            raise TimeoutError(f"it took longer than {self._seconds:g} s")

    def _cut(self) -> None:
        for one in list(self._sockets):
            with suppress(OSError):
                socket.socket.shutdown(one, socket.SHUT_RDWR)  # beneath TLS, whose state others use


def _seconds(text: str) -> float | None:
    return float(text) if text.isascii() and text.isdecimal() else None
