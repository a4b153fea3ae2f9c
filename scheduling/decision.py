"""The outcome of a scheduler run and its explanation (spec scheduling, 10.1 and 10.3)."""

from __future__ import annotations

from dataclasses import dataclass

from scheduling.request import PlacementRequest
from scheduling.resources import GIB, ResourceVector


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRemoval:
    """What one filter did, counted against the hosts that were left before it.

    Attributes:
        step: Name of the filter.
        removed: Hosts it removed.
        remaining: Hosts left after it.
    """

    step: str
    removed: int
    remaining: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A host that could take the request.

    Attributes:
        host_name: Name of the host.
        score: Sum of the contributions.
        contributions: (weigher, ``multiplier * tanh(activation)``) in the pipeline's order.
    """

    host_name: str
    host_id: int
    score: float
    contributions: tuple[tuple[str, float], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosestHost:
    """The host that fails for lack of room alone and comes nearest to having enough.

    Attributes:
        host_name: Name of the host.
        free: What it has free for the request, negative where it is over-used.
        short: What it lacks of network, disk I/O and GPUs, with the numbers; empty for nothing.
    """

    host_name: str
    host_id: int
    free: ResourceVector
    short: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """Where a request goes, or why nowhere.

    Attributes:
        host_name: Chosen host; None if no host is left.
        host_id: Database key of the chosen host; None if no host is left.
        top: Best hosts, best first, as many as the caller wanted.
        removals: One entry for each filter of the pipeline, in its order.
        candidates_in: Hosts before the first filter.
        closest: For a refused request the host with the largest free room among those that passed
            every filter but capacity; None if there is none, or a host was chosen.
        failure: Why the run came to no result; empty if it did (spec scheduling, 15.1).
    """

    request: PlacementRequest
    pipeline: str
    host_name: str | None
    host_id: int | None
    top: tuple[Candidate, ...]
    removals: tuple[StepRemoval, ...]
    candidates_in: int
    closest: ClosestHost | None
    failure: str = ""


def explain_removals(decision: Decision) -> str:
    """Return one line for people: what was asked, which step removed how many hosts, what is left.

    Memory is in GiB, rounded down to a hundredth for free room and up for the request, so that the
    text never shows room that is not there.
    """
    request = decision.request
    asked_gib = _gib_text(-(-request.memory_bytes * 100 // GIB))
    where = f"in zone {request.zone}" if request.zone else "in any zone"
    parts = [f"asked {asked_gib} GiB and {request.vcpus} vCPUs on one host {where}"]
    if decision.failure:
        return f"{parts[0]}; the run failed: {decision.failure}"
    if decision.host_name is not None:
        parts.append(f"chose {decision.host_name}")
    removing = [removal for removal in decision.removals if removal.removed]
    started = f"started with {decision.candidates_in} hosts"
    removed = [f"{removal.step} removed {removal.removed}" for removal in removing]
    remaining = decision.removals[-1].remaining if decision.removals else decision.candidates_in
    parts.append(", ".join([started, *removed, f"{remaining} left"]))
    if decision.closest is not None:
        closest = decision.closest
        free_gib = _gib_text(closest.free.memory_bytes * 100 // GIB)
        parts.append(
            f"largest free room: {free_gib} GiB and {closest.free.vcpus} vCPUs"
            f" on {closest.host_name}"
        )
        if closest.short:
            parts.append(f"not enough there of {closest.short}")
    return "; ".join(parts)


def _gib_text(hundredths: int) -> str:
    sign = "-" if hundredths < 0 else ""
    whole, part = divmod(abs(hundredths), 100)
    return f"{sign}{whole}.{part:02}".rstrip("0").rstrip(".")
