"""Tasks by the database's clock: sending, taking, and refusing with a clock that is off.

Celery compares expiries and start times with the clock of the process that reads them. Here both
sides go by the database's time, so a worker with a fast clock does not drop what beat sends. One
whose clock is further off than ``HEADROOM_CLOCK_REFUSE_SECONDS`` gives tasks back for others.
"""

from __future__ import annotations

import socket
import threading
import time
from datetime import datetime, timedelta
from typing import Any, Literal

import structlog
from celery import Celery, Task
from celery.exceptions import Reject
from celery.worker.request import Request
from celery.worker.state import revoked

from journal.clock import followed_clock, is_doubtful, is_off

log = structlog.get_logger(__name__)

#: A refused task is held so long, so that a lone worker does not take it again and again at once.
REFUSAL_PAUSE_SECONDS = 1.0
LOG_SECONDS = 60.0


class ClockWatch:
    """Says whether this process may do periodic work, and logs why not, once a minute at most."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._logged_at = -LOG_SECONDS

    def may_work(self, process: str) -> bool:
        """Compare the clock with the database's.

        Args:
            process: Name of the process, as operators know it.
        """
        followed_clock.follow_as(process)
        deviation = followed_clock.deviation()
        if is_doubtful(deviation):
            self._tell(process, deviation)
        return not is_off(deviation)

    def _tell(self, process: str, deviation: timedelta) -> None:
        with self._lock:
            if time.monotonic() - self._logged_at < LOG_SECONDS:
                return
            self._logged_at = time.monotonic()
        seconds = round(deviation.total_seconds(), 3)
        if is_off(deviation):
            log.error("clock_off_work_refused", process=process, deviation_seconds=seconds)
        else:
            log.warning("clock_deviates", process=process, deviation_seconds=seconds)


watch = ClockWatch()


class ClockedRequest(Request):
    """A message whose times are compared with the database's."""

    @property
    def eta(self) -> datetime | None:
        """When it starts, by the clock of this process, which the timer goes by."""
        begins: datetime | None = super().eta
        return None if begins is None else begins + followed_clock.deviation()

    def maybe_expire(self) -> Literal[True] | None:
        """Return whether it is too late for it; if so nobody runs it."""
        if not self.expires or followed_clock.now() <= self.expires:
            return None
        revoked.add(self.id)
        return True


class ClockedTask(Task):  # type: ignore[type-arg]  # not generic when it runs
    """A task that a process with a wrong clock leaves to others."""

    abstract = True
    Request = "journal.task_clock:ClockedRequest"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:  # Any: whatever a task takes and returns
        """Run it, or give the message back.

        Raises:
            Reject: the clock of this process is off.
        """
        if self.request.called_directly:
            return super().__call__(*args, **kwargs)
        if not watch.may_work(str(self.request.hostname)):
            threading.Event().wait(REFUSAL_PAUSE_SECONDS)
            raise Reject("the clock of this process is off", requeue=True)
        return self.run(*args, **kwargs)


def beat_may_send() -> bool:
    """Return whether the clock of this process, which is beat, lets it send tasks."""
    return watch.may_work(f"beat@{socket.gethostname()}")


class ClockedCelery(Celery):
    """The application whose now is the database's; expiries, start times and beat follow it."""

    task_cls = "journal.task_clock:ClockedTask"

    def now(self) -> datetime:
        """Return the database's time in the application's time zone."""
        return followed_clock.now().astimezone(self.timezone)
