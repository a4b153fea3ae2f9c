"""Heartbeats: the lease of this agent, and the epoch that it is in (spec hosts, D.3, D.9)."""

from __future__ import annotations

import logging
import random
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence

from headroom_host_agent import ABILITIES, VERSION
from headroom_host_agent.server.client import Client, RefusedError, ServerError
from headroom_host_agent.server.identity import Enrolled
from headroom_host_agent.server.refusals import ENDING, EndedError

log = logging.getLogger(__name__)
HEARTBEAT_SECONDS = 10.0  # until the server says another
LEASE_SECONDS = 30.0  # likewise


class Heart:
    """Sends heartbeats. The lease counts from when an accepted one was sent.

    Args:
        is_resynced: Whether all reservations were compared since the epoch began.
        heard: Told what the server says to each heartbeat that it takes.
        done: What is said of the server's commands.
    """

    def __init__(
        self,
        client: Client,
        enrolled: Enrolled,
        *,
        boot_id: str,
        takes_over: bool = False,
        outbox_depth: Callable[[], int] = lambda: 0,
        is_resynced: Callable[[], bool] = lambda: True,
        heard: Callable[[Mapping[str, object]], None] = lambda _: None,
        done: Callable[[], Sequence[Mapping[str, object]]] = tuple,
        monotonic: Callable[[], float] = time.monotonic,
        wait: Callable[[threading.Event, float], bool] = threading.Event.wait,
    ) -> None:
        self._client, self._enrolled = client, enrolled
        self._boot_id, self._takes_over = boot_id, takes_over
        self._outbox_depth, self._monotonic, self._wait = outbox_depth, monotonic, wait
        self._is_resynced, self._heard, self._done = is_resynced, heard, done
        self._beating = threading.RLock()
        self._run_id = str(uuid.uuid4())
        self._interval_seconds, self._lease_seconds = HEARTBEAT_SECONDS, LEASE_SECONDS
        self._lease_end: float | None = None
        self._refused_since: float | None = None

    def run(self, stop: threading.Event) -> None:
        """Send heartbeats until ``stop`` is set; sooner again when one fails.

        Raises:
            EndedError: The server takes nothing more of this agent, or another run has its lease.
            IdentityError: A new epoch cannot be kept.
        """
        while not stop.is_set():
            is_taken = self.beat()
            pause = self._interval_seconds if is_taken else self._interval_seconds / 4
            self._wait(stop, pause * random.uniform(0.9, 1.0))  # noqa: S311

    def holds_lease(self) -> bool:
        """Return whether the lease runs, by this host's monotonic clock."""
        return self.lease_seconds() > 0

    def lease_seconds(self) -> float:
        """Return for how long the lease still runs; 0 without one."""
        end = self._lease_end
        return 0.0 if end is None else max(0.0, end - self._monotonic())

    def beat(self) -> bool:
        """Send one heartbeat, and another when the epoch changed; return whether it was taken.

        Threads may call it at any time.

        Raises:
            EndedError: As ``run``.
            IdentityError: As ``run``.
        """
        with self._beating:
            return self._beat()

    def _beat(self) -> bool:
        sent = self._monotonic()
        try:
            answer = self._client.beat(self._enrolled.identity, self._facts())
        except RefusedError as error:
            return self._refused(error)
        except ServerError as error:
            log.warning("no heartbeat: %s", error)
            return False
        self._interval_seconds = _seconds(answer, "heartbeat_s", self._interval_seconds)
        self._lease_seconds = _seconds(answer, "lease_ttl_s", self._lease_seconds)
        self._lease_end, self._refused_since = sent + self._lease_seconds, None
        self._takes_over = False
        self._heard(answer)
        return True

    def _facts(self) -> dict[str, object]:
        done = list(self._done())
        return {
            "run_id": self._run_id,
            "boot_id": self._boot_id,
            "uptime_s": int(time.clock_gettime(time.CLOCK_BOOTTIME)),
            "outbox_depth": self._outbox_depth(),
            "resynced": self._is_resynced(),
            "takeover": self._takes_over,
            "version": VERSION,
            "can": list(ABILITIES),
            **({"done": done} if done else {}),
        }

    def _refused(self, error: RefusedError) -> bool:
        if error.code in ENDING:
            raise EndedError(str(error)) from None
        if error.code == "stale_epoch":
            epoch = error.details.get("fence_epoch")
            if isinstance(epoch, int) and epoch > self._enrolled.identity.fence_epoch:
                log.warning("the epoch %d has begun", epoch)
                self._enrolled.enter_epoch(epoch)
                return self.beat()
        if error.code == "run_superseded":
            self._superseded(error)
        log.error("the heartbeat is refused: %s", error)
        return False

    def _superseded(self, error: RefusedError) -> None:
        """Wait for the end of the lease of a run that may have died; no longer than two leases."""
        now = self._monotonic()
        self._refused_since = now if self._refused_since is None else self._refused_since
        if self._lease_end is not None or now - self._refused_since > 2 * self._lease_seconds:
            raise EndedError(str(error)) from None


def _seconds(answer: Mapping[str, object], name: str, otherwise: float) -> float:
    told = answer.get(name)
    is_told = isinstance(told, int | float) and not isinstance(told, bool) and told > 0
    return float(told) if is_told else otherwise  # type: ignore[arg-type]  # a number by the check
