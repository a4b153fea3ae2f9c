"""What systemd is told: that we are ready, alive, stopping."""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Callable, Mapping

log = logging.getLogger(__name__)
_SHARE = 3  # of the watchdog's time, between two signs of life


class Systemd:
    """Sends to the socket that the environment names; does nothing without one."""

    def __init__(
        self,
        environment: Mapping[str, str] = os.environ,
        *,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        address = environment.get("NOTIFY_SOCKET", "")
        self._address = "\0" + address[1:] if address.startswith("@") else address
        watchdog = environment.get("WATCHDOG_USEC", "")
        self._interval = int(watchdog) / 1e6 / _SHARE if watchdog.isdigit() else None
        self._monotonic, self._next = monotonic, 0.0

    def ready(self) -> None:
        """Say that the agent is ready."""
        self._send("READY=1")

    def alive(self) -> None:
        """Say that the agent works, as often as the watchdog wants to hear it."""
        now = self._monotonic()
        if self._interval is not None and now >= self._next:
            self._next = now + self._interval
            self._send("WATCHDOG=1")

    def stopping(self) -> None:
        """Say that the agent ends."""
        self._send("STOPPING=1")

    def _send(self, text: str) -> None:
        if not self._address:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
                sender.settimeout(1.0)
                sender.sendto(text.encode(), self._address)
        except OSError as error:
            log.warning("systemd is not told %s: %s", text, error)
