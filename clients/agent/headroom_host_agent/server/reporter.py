"""Reports what the host has, again and again (spec hosts, D.10)."""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable, Mapping, Sequence

from headroom_host_agent.resources.facts import ResourceError
from headroom_host_agent.resources.manager import Manager
from headroom_host_agent.server.client import Client, RefusedError, ServerError
from headroom_host_agent.server.identity import Enrolled
from headroom_host_agent.server.refusals import ENDING, EndedError

log = logging.getLogger(__name__)
FIRST_RETRY_SECONDS, LONGEST_RETRY_SECONDS = 1.0, 60.0


class Reporter:
    """Sends reports at an interval; after a failure sooner, with pauses that double."""

    def __init__(
        self,
        manager: Manager,
        client: Client,
        enrolled: Enrolled,
        *,
        interval_seconds: float,
        health: Callable[[], Sequence[Mapping[str, object]]] | None = None,
        wait: Callable[[threading.Event, float], bool] = threading.Event.wait,
    ) -> None:
        self._manager, self._client, self._enrolled = manager, client, enrolled
        self._interval_seconds, self._wait = interval_seconds, wait
        self._changed, self._health = threading.Event(), health

    def run(self, stop: threading.Event) -> None:
        """Report until ``stop`` is set; ``report_soon`` has it seen at once.

        Raises:
            EndedError: The server takes nothing more of this agent.
        """
        retry_seconds = FIRST_RETRY_SECONDS
        while not stop.is_set():
            if self.report():
                pause, retry_seconds = self._interval_seconds, FIRST_RETRY_SECONDS
            else:
                pause = min(retry_seconds, self._interval_seconds)
                retry_seconds = min(LONGEST_RETRY_SECONDS, retry_seconds * 2)
            # Many hosts boot at once: they are not to report at once ever after.
            self._wait(self._changed, pause * random.uniform(0.9, 1.1))  # noqa: S311
            self._changed.clear()

    def report_soon(self) -> None:
        """Report at once, or look at once whether to stop: something changed."""
        self._changed.set()

    def report(self) -> bool:
        """Report once; return whether it was taken.

        Raises:
            EndedError: As ``run``.
        """
        try:
            report = self._manager.get_full_status().to_json()
            if self._health is not None:
                report["health"] = list(self._health())
            self._client.put_resources(self._enrolled.identity, report)
        except RefusedError as error:
            if error.code in ENDING:
                raise EndedError(str(error)) from None
            log.error("the report is refused: %s", error)  # noqa: TRY400  # no fault of ours
            return False
        except (ServerError, ResourceError) as error:
            log.warning("no report: %s", error)
            return False
        return True
