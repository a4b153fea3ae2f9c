"""Tells what is on the host and what was made, on change and at intervals (spec hosts, D.6)."""

from __future__ import annotations

import hashlib
import json
import logging
import random
import threading
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any

from headroom_host_agent.provision.options import Usage
from headroom_host_agent.provision.signing.v2 import canonical_json
from headroom_host_agent.resources.facts import InstanceAllocation
from headroom_host_agent.server.client import Client, RefusedError, Request, ServerError
from headroom_host_agent.server.identity import Enrolled
from headroom_host_agent.server.refusals import ENDING, EndedError

log = logging.getLogger(__name__)
_ACTIVE = frozenset({"Running", "Paused"})
MISMATCH = "digest_mismatch"
_Row = dict[str, Any]  # uuid, name, active


class Observer:
    """Sends the list of VMs and what runs.

    The list is sent whole at first and whenever the server does not have the one before; between
    that what changed of it. A list that cannot be had is not sent: that says nothing of VMs.

    Args:
        instances: Lists VMs; None where nothing does.
        usage: What runs.
    """

    def __init__(
        self,
        client: Client,
        enrolled: Enrolled,
        *,
        instances: Callable[[], Iterable[InstanceAllocation]] | None,
        usage: Callable[[], Usage],
        interval_seconds: float,
        wait: Callable[[threading.Event, float], bool] = threading.Event.wait,
    ) -> None:
        self._client, self._enrolled = client, enrolled
        self._instances, self._usage = instances, usage
        self._interval_seconds, self._wait = interval_seconds, wait
        self._changed = threading.Event()
        self._kept: dict[str, _Row] | None = None

    def forget(self) -> None:
        """Send the whole list next time."""
        self._kept = None

    def look_soon(self) -> None:
        """Look at once: something changed, or the agent ends."""
        self._changed.set()

    def run(self, stop: threading.Event) -> None:
        """Tell until ``stop`` is set; ``look_soon`` has it seen at once.

        Raises:
            EndedError: The server takes nothing more of this agent.
        """
        while not stop.is_set():
            self._changed.clear()
            self.tell()
            self._wait(self._changed, self._interval_seconds * random.uniform(0.9, 1.1))  # noqa: S311

    def tell(self) -> None:
        """Tell both once; what fails is told at the next time.

        Raises:
            EndedError: As ``run``.
        """
        now = self._client.now()
        if now is None:
            return  # no heartbeat was answered yet
        self._send("stats", _stats(self._usage(), now))
        if self._instances is None:
            return
        try:
            listed = tuple(self._instances())
        except Exception as error:  # noqa: BLE001 - of a plug-in
            log.warning("VMs cannot be listed, so nothing is told of them: %s", error)
            return
        self._tell_instances(_rows(listed), now)

    def _tell_instances(self, rows: dict[str, _Row], now: datetime) -> None:
        kept, self._kept = self._kept, None
        is_told = kept is not None and self._send(
            "instances", _change(kept, rows, now), method="PATCH"
        )
        if is_told or self._send("instances", _list(rows, now)):
            self._kept = rows

    def _send(self, what: str, document: Mapping[str, object], *, method: str = "PUT") -> bool:
        """Send something and return whether it was taken."""
        identity = self._enrolled.identity
        path = f"/hosts/v1/{identity.host_id}/{what}"
        body = json.dumps(document).encode()
        try:
            self._client.signed(identity, Request(method=method, path=path, body=body))
        except RefusedError as error:
            if error.code in ENDING:
                raise EndedError(str(error)) from None
            if error.code == MISMATCH:
                log.info("the server has another list of VMs: all of it is sent")
            else:
                log.warning("%s are refused: %s", what, error)
            return False
        except ServerError as error:
            log.warning("%s are not told: %s", what, error)
            return False
        return True


def _stats(usage: Usage, now: datetime) -> dict[str, object]:
    units = usage.units
    return {
        "units": {"cru": units.cru, "mru": units.mru, "hru": units.hru, "sru": units.sru},
        "workloads": dict(usage.workloads),
        "generated_at": now.isoformat(),
    }


def _rows(instances: Iterable[InstanceAllocation]) -> dict[str, _Row]:
    return {
        one.id: {"uuid": one.id, "name": one.name[:255], "active": one.state in _ACTIVE}
        for one in instances
    }


def _list(rows: Mapping[str, _Row], now: datetime) -> dict[str, object]:
    return {"instances": list(rows.values()), "generated_at": now.isoformat()}


def _change(kept: Mapping[str, _Row], rows: Mapping[str, _Row], now: datetime) -> dict[str, object]:
    return {
        "added": [row for name, row in rows.items() if kept.get(name) != row],
        "removed": [name for name in kept if name not in rows],
        "base_digest": instances_digest(kept.values()),
        "generated_at": now.isoformat(),
    }


def instances_digest(rows: Iterable[_Row]) -> str:
    """Return the digest of a list, as the server makes it of the list that it keeps."""
    listed = sorted([row["uuid"], row["name"], row["active"]] for row in rows)
    return hashlib.sha256(canonical_json(listed)).hexdigest()
