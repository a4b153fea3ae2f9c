"""When an in-flight reservation has done its work (spec commitments, 12; scheduling, 12.4, 16.3).

Between the answer to Nova and the VM's appearance on a host, its size blocks every host that was
returned, because Nova picks one of them. These rules say for which intents that is done, for how
long, and when a VM has arrived.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from scheduling.resources import ResourceVector

UNKNOWN_INTENT = "unknown"
INTENTS = ("create", "rebuild", "resize", "live_migration", "evacuate", UNKNOWN_INTENT)
SIZED_INTENTS = frozenset({"rebuild", "resize"})
SLOW_INTENTS = frozenset({"resize", "live_migration"})
INTENTS_WITHOUT_VM = frozenset(
    {
        "reserve_for_failover",
        "reuse_failover_reservation",
        "reserve_for_committed_resource",
        "capacity_probe",
    }
)
FAILED_STATUSES = frozenset({"ERROR", "DELETED", "SOFT_DELETED"})


class InFlightState(StrEnum):
    """What a placement waits for (spec commitments, 2.7 and 12.2)."""

    LANDED = "Landed"
    NOT_FOUND = "InstanceNotFound"
    SIZE_MISMATCH = "VMSizeMismatch"
    ON_SOURCE = "InstanceOnSource"


@dataclass(frozen=True, slots=True, kw_only=True)
class InFlightPlacement:
    """The in-flight rows of one VM.

    Attributes:
        intent: What the placement is for.
        hosts: Hosts that its rows block.
        resources: What each row blocks.
        source_host: Where the VM was when it was placed; empty for a new one.
    """

    intent: str
    hosts: frozenset[str]
    resources: ResourceVector
    source_host: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class VMSighting:
    """Where a VM is seen now.

    Attributes:
        hosts: Hosts that list it, running or not; two while it is migrated live.
        resources: Its current size.
    """

    hosts: frozenset[str]
    resources: ResourceVector


def holds_in_flight(intent: str) -> bool:
    """Return whether a placement for this intent brings a VM, which has to be held room for.

    Source: spec commitments, 12.1.
    """
    return intent not in INTENTS_WITHOUT_VM


def in_flight_lifetime(intent: str, *, ttl_seconds: int, slow_ttl_seconds: int) -> timedelta:
    """Return how long an in-flight row lives, unless it ends otherwise.

    Args:
        intent: What the placement is for.
        ttl_seconds: Lifetime in general.
        slow_ttl_seconds: Lifetime for resize and live migration.

    Source: spec commitments, 12.3 rule 3; scheduling, 16.3.
    """
    return timedelta(seconds=slow_ttl_seconds if intent in SLOW_INTENTS else ttl_seconds)


def intent_label(intent: str) -> str:
    """Return the intent as a metric label: a known one, or ``unknown``."""
    return intent if intent in INTENTS else UNKNOWN_INTENT


def in_flight_state(placement: InFlightPlacement, sighting: VMSighting | None) -> InFlightState:
    """Return whether a VM has landed, or what its placement still waits for.

    Landed means that it is listed on a host with an in-flight row of it (for rebuild and resize
    also with the size of that row), or on a host that is neither a candidate nor its source. A VM
    that is listed on its source alone is still on its way.

    Source: spec commitments, 12.2 and 12.3 rule 1.
    """
    if sighting is None or not sighting.hosts:
        return InFlightState.NOT_FOUND
    states = {_state_on(host, placement, sighting) for host in sorted(sighting.hosts)}
    for state in (InFlightState.LANDED, InFlightState.SIZE_MISMATCH):
        if state in states:
            return state
    return InFlightState.ON_SOURCE


def _state_on(host: str, placement: InFlightPlacement, sighting: VMSighting) -> InFlightState:
    is_sized = placement.intent in SIZED_INTENTS
    if host == placement.source_host and not (is_sized and host in placement.hosts):
        return InFlightState.ON_SOURCE
    if host in placement.hosts and is_sized and sighting.resources != placement.resources:
        return InFlightState.SIZE_MISMATCH
    return InFlightState.LANDED


def has_failed(
    *, status: str, vm_state: str, updated_at: datetime | None, placed_at: datetime | None
) -> bool:
    """Return whether Nova gave a placement up: the VM is in error or deleted since then.

    A VM that was in error before and has not changed since is being rescued, not given up.

    Args:
        status: Nova's status of the VM, any case.
        vm_state: Nova's finer state, any case.
        updated_at: When Nova last changed the VM, if known.
        placed_at: When the placement was made, if known.

    Source: spec commitments, 12.3 rule 4; scheduling, 16.3.
    """
    if updated_at is not None and placed_at is not None and updated_at < placed_at:
        return False
    words = {status.upper(), vm_state.upper().replace("-", "_")}
    return bool(words & (FAILED_STATUSES | {"SOFT_DELETE"}))


def is_gone(
    placement: InFlightPlacement,
    *,
    is_listed: bool,
    placed_at: datetime | None,
    now: datetime,
    gone_seconds: int,
) -> bool:
    """Return whether a VM that existed when it was placed is listed no more, and not just now.

    Args:
        placement: Its in-flight rows; without a source the VM is new and may not be listed yet.
        is_listed: Whether the VM is in the list, on whatever host.
        placed_at: When the placement was made, if known.
        gone_seconds: How long after the placement a VM may be missing.

    Source: spec scheduling, 16.3 (deleted VMs end their blocks).
    """
    if is_listed or not placement.source_host or placed_at is None:
        return False
    return now - placed_at >= timedelta(seconds=gone_seconds)
