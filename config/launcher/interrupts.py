"""Signals: the first one ends what runs, further ones must not disturb the cleaning up."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class StopRequested(BaseException):
    """Somebody asked this process to stop.

    Attributes:
        signum: The signal that said so.
    """

    def __init__(self, signum: int) -> None:
        super().__init__(signum)
        self.signum = signum


def listen_for_stop() -> None:
    """Turn the first stop signal into :class:`StopRequested`; ignore the ones after it."""

    def stop(signum: int, _frame: object) -> None:
        ignore_stop()
        raise StopRequested(signum)

    for signum in STOP_SIGNALS:
        signal.signal(signum, stop)


def ignore_stop() -> None:
    """Ignore stop signals from now on: everything left to do is bounded in time."""
    for signum in STOP_SIGNALS:
        signal.signal(signum, signal.SIG_IGN)


@contextmanager
def collected_stops() -> Iterator[list[int]]:
    """Collect stop signals in a list instead of raising, to pass them on to a child."""
    received: list[int] = []
    before = {
        signum: signal.signal(signum, lambda number, _: received.append(number))
        for signum in STOP_SIGNALS
    }
    try:
        yield received
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)
