"""What the running agent does for an operator on its host (spec hosts, D.10)."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime

from headroom_host_agent import VERSION
from headroom_host_agent.process.agent import Agent
from headroom_host_agent.process.control import ControlError, Handler
from headroom_host_agent.process.metrics import Reading
from headroom_host_agent.process.rotation import rotate
from headroom_host_agent.provision.ids import IdError, split_id
from headroom_host_agent.provision.options import Usage
from headroom_host_agent.provision.stored import UnknownReservationError
from headroom_host_agent.server.client import RefusedError, ServerError

_GIB = 1024**3


class Commands:
    """What an operator may ask of a running agent; each yields lines."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent

    def status(self, _: Mapping[str, object]) -> Iterator[object]:
        """Say how the agent is."""
        yield status_of(self._agent)

    def counters(self, _: Mapping[str, object]) -> Iterator[object]:
        """Say what runs, again and again."""
        for usage in self._agent.engine.counters(self._agent.stop):
            yield usage_document(usage)

    def decommission(self, asked: Mapping[str, object]) -> Iterator[object]:
        """Remove a workload that is beyond repair."""
        gwid, reason = str(asked.get("gwid", "")), str(asked.get("reason", "")).strip()
        if not reason:
            raise ControlError("a reason is needed")
        try:
            split_id(gwid)
            self._agent.engine.decommission_cached(gwid, reason)
        except (IdError, UnknownReservationError):
            raise ControlError(f"no reservation {gwid!r} is here") from None
        yield f"{gwid} is removed"

    def cleanup(self, asked: Mapping[str, object]) -> Iterator[object]:
        """Remove what was left behind, or say what would be."""
        report = self._agent.clean_up(dry_run=asked.get("dry_run") is True)
        for finding in report.findings:
            one = finding.artifact
            yield {
                "kind": one.kind,
                "name": one.name,
                "reservation": one.reservation_id,
                "fate": finding.fate.value,
                "reason": finding.reason,
                "removed": one.name in report.removed,
            }
        if report.stopped:
            raise ControlError(f"nothing was removed: {report.stopped}")

    def verify(self, _: Mapping[str, object]) -> Iterator[object]:
        """Say whether all is as it was made."""
        for gwid, kind, is_there in self._agent.verify():
            yield {"reservation": gwid, "type": kind, "ok": is_there}

    def confirm(self, _: Mapping[str, object]) -> Iterator[object]:
        """Take what is stored as all there is."""
        self._agent.parts.store.confirm()
        yield "what is stored counts as all there is"

    def rotate_key(self, _: Mapping[str, object]) -> Iterator[object]:
        """Go on with a new key."""
        parts = self._agent.parts
        try:
            kid = rotate(parts.folder, parts.client, parts.enrolled)
        except (RefusedError, ServerError) as error:
            raise ControlError(str(error)) from None
        yield f"the key is {kid}"


def handlers(agent: Agent) -> Mapping[str, Handler]:
    """Return command -> what answers it."""
    commands = Commands(agent)
    return {
        "status": commands.status,
        "counters": commands.counters,
        "decommission": commands.decommission,
        "cleanup": commands.cleanup,
        "verify": commands.verify,
        "confirm": commands.confirm,
        "rotate-key": commands.rotate_key,
    }


def status_of(agent: Agent) -> dict[str, object]:
    """Return how the agent is, without secrets."""
    parts = agent.parts
    identity, now = parts.enrolled.identity, parts.client.now()
    states: dict[str, int] = {}
    for row in parts.store.rows():
        states[row.state.value] = states.get(row.state.value, 0) + 1
    return {
        "version": VERSION,
        "wanted_version": agent.wanted_version,
        "host_id": identity.host_id,
        "kid": identity.kid,
        "fence_epoch": identity.fence_epoch,
        "lease_seconds": round(agent.heart.lease_seconds(), 1),
        "readiness": dict(agent.readiness),
        "is_resyncing": parts.store.is_resyncing,
        "forgotten": [
            {"reservation": row.reservation.id, "type": row.reservation.type}
            for row in parts.store.rows()
            if row.is_forgotten
        ],
        "server_time": None if now is None else now.astimezone(UTC).isoformat(),
        "clock_offset_seconds": parts.client.offset_seconds(),
        "cursor": parts.store.cursor,
        "outbox_depth": parts.store.outbox_depth(),
        "reservations": states,
        "enforce": parts.settings.enforce,
        "provisioners": sorted(parts.provisioners),
        "failed_provisioners": dict(parts.failed_provisioners),
        "needs_confirmation": parts.store.needs_confirmation,
    }


def usage_document(usage: Usage) -> dict[str, object]:
    """Return what runs as it is told; memory and disks in GiB."""
    units = usage.units
    return {
        "at": datetime.now(UTC).isoformat(),
        "cru": units.cru,
        "mru": round(units.mru / _GIB, 3),
        "hru": round(units.hru / _GIB, 3),
        "sru": round(units.sru / _GIB, 3),
        "workloads": dict(usage.workloads),
    }


def readings(agent: Agent) -> Iterable[Reading]:
    """Return what a scrape reads."""
    parts = agent.parts
    oldest, offset = parts.store.oldest_message_at(), parts.client.offset_seconds()
    yield from agent.jobs.readings()
    yield "outbox_depth", "gauge", {}, parts.store.outbox_depth()
    yield "outbox_oldest_seconds", "gauge", {}, max(0.0, time.time() - oldest) if oldest else 0.0
    if offset is not None:
        yield "clock_offset_seconds", "gauge", {}, offset
    yield "lease_remaining_seconds", "gauge", {}, agent.heart.lease_seconds()
    yield "cleanup_candidates", "gauge", {}, len(parts.store.artifacts())
