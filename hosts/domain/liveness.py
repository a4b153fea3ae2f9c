"""Whether the agent of a host is heard: leases, silence and return (spec hosts, D.3, D.9)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

#: Liveness of a host without an agent (spec hosts, D.3).
UNMANAGED: Final = "unmanaged"


class Liveness(StrEnum):
    """What is known of an agent; silence proves nothing about VMs."""

    ENROLLED = "enrolled"
    UP = "up"
    SUSPECT = "suspect"
    DOWN = "down"


@dataclass(frozen=True, slots=True, kw_only=True)
class Periods:
    """How long silence is borne.

    Attributes:
        lease: From a heartbeat on.
        down_after: From the end of the lease on.
    """

    lease: timedelta
    down_after: timedelta


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentLease:
    """What the last heartbeats said.

    Attributes:
        run_id: Of the process that holds the lease; empty until the first heartbeat.
        boot_id: Of the kernel that it runs on; empty when unknown.
    """

    liveness: Liveness
    since: datetime
    run_id: str = ""
    boot_id: str = ""
    renewed_at: datetime | None = None
    expires_at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Beat:
    """A heartbeat.

    Attributes:
        is_resynced: Whether the agent dropped what an older epoch told it.
        takes_over: Whether it takes the lease from another run that still holds it.
    """

    run_id: str
    boot_id: str = ""
    is_resynced: bool = False
    takes_over: bool = False


class RunSupersededError(Exception):
    """Another run of the same identity holds the lease."""


def after_beat(
    lease: AgentLease, beat: Beat, *, now: datetime, has_reported: bool, periods: Periods
) -> AgentLease:
    """Return the lease after a heartbeat of the current epoch.

    A run that started anew under the same kernel has the lease at once; one under another kernel
    (a reboot, a cloned disk) when the old lease is over, or on request.

    Raises:
        RunSupersededError: Another run holds the lease.
    """
    if not may_renew(lease, beat, now=now):
        raise RunSupersededError
    held = replace(
        lease,
        run_id=beat.run_id,
        boot_id=beat.boot_id,
        renewed_at=now,
        expires_at=now + periods.lease,
    )
    match lease.liveness:
        case Liveness.ENROLLED if not has_reported:
            return held
        case Liveness.DOWN if not beat.is_resynced:
            return held
        case Liveness.UP:
            return held
    return replace(held, liveness=Liveness.UP, since=now)


def may_renew(lease: AgentLease, beat: Beat, *, now: datetime) -> bool:
    """Return whether a run may have the lease."""
    is_same = lease.run_id in ("", beat.run_id)
    is_over = lease.expires_at is None or lease.expires_at <= now
    is_restarted = lease.boot_id == beat.boot_id != ""
    return is_same or is_over or is_restarted or beat.takes_over


def is_believable(*, silent: int, known: int, share: float) -> bool:
    """Return whether so many agents may have gone at once; else it is our side that does not hear.

    Args:
        silent: Agents that would be down now.
        known: Agents that are up or suspect, those included.
        share: Of the known that may go; one or two may always.
    """
    return silent <= 2 or silent <= known * share  # noqa: PLR2004 - small fleets
