"""Reasons, retry times, cores headroom (spec commitments, 8.5, 8.6, 8.9; spec liquid, 11.5)."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from commitments.domain.statuses import Cause, Ruling

INSUFFICIENT_CAPACITY = "insufficient capacity"
INSUFFICIENT_CORES = "insufficient CPU cores"
WAITING_FOR_CORES = "waiting for CPU capacity data"
WAITING_FOR_PLACEMENT = "waiting for reservation placement"
TIMEOUT_HEAD = "timeout reached while processing commitment changes"
DRY_RUN_HEAD = "dry run"

CALLER_WAITS_RETRY_SECONDS = 1
MAX_BACKOFF_DOUBLINGS = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class RejectedCommitment:
    """One commitment, or one probe of a dry run, that was answered no.

    Attributes:
        commitment_uuid: Uuid of the commitment, or the name of the probe.
        message: Why, in the words of spec liquid 11.5.
        advice: The most specific cause and what would fit, for a person; empty when unknown.
    """

    commitment_uuid: str
    message: str
    advice: str = ""

    @property
    def line(self) -> str:
        """The refusal on one line, advice in brackets after the words of the specification."""
        told = f" ({self.advice})" if self.advice else ""
        return f"{self.commitment_uuid}: {self.message}{told}"


@dataclass(frozen=True, slots=True, kw_only=True)
class CoresDecision:
    """The answer to a request for cores.

    Attributes:
        outcome: Accepted, rejected, or reserving (to be tried again).
        message: Why not; empty when accepted, and when the stored rejection stays as it is.
        cause: Capacity or transient; None when accepted or still rejected.
        retry_seconds: Seconds until the next try where the usual backoff does not apply, else None.
    """

    outcome: Ruling
    message: str = ""
    cause: Cause | None = None
    retry_seconds: int | None = None


def cores_headroom_message(available: int, requested: int) -> str:
    """Return why cores cannot be promised; both numbers are vCPUs.

    Source: spec commitments, 8.5.
    """
    return f"{INSUFFICIENT_CORES}: {available} available, {requested} requested"


def slots_message(ready: int, expected: int) -> str:
    """Return why memory cannot be promised; both numbers count reservation slots.

    Source: spec commitments, 8.6.
    """
    return f"{INSUFFICIENT_CAPACITY}: {ready}/{expected} reservation slots could be placed"


def rejection_reason(rejected: Sequence[RejectedCommitment]) -> str:
    """Return the reason of a refused request: a head and a line per commitment.

    Args:
        rejected: The refused commitments in write order; empty gives an empty reason.

    Source: spec liquid, 11.5.
    """
    if not rejected:
        return ""
    lines = [f"- commitment {one.line}" for one in rejected]
    return "\n".join([f"{len(rejected)} commitment(s) failed to apply:", *lines])


def timeout_reason(details: Sequence[str]) -> str:
    """Return the reason of a request that ran out of time.

    Source: spec liquid, 11.5.
    """
    return f"{TIMEOUT_HEAD}: {'; '.join(details)}"


def dry_run_reason(rejected: Sequence[RejectedCommitment]) -> str:
    """Return the reason of a refused dry run: a head and a line per probe.

    Args:
        rejected: The refused probes in order, their names as ``commitment_uuid``; empty gives an
            empty reason.

    Source: spec liquid, 11.7.
    """
    if not rejected:
        return ""
    lines = [f"- {one.line}" for one in rejected]
    return "\n".join([f"{DRY_RUN_HEAD}: {len(rejected)} probe(s) rejected:", *lines])


def dry_run_timeout_reason(details: Sequence[str]) -> str:
    """Return the reason of a dry run that ran out of time.

    Source: spec liquid, 11.7.
    """
    return f"{DRY_RUN_HEAD}: timeout: {'; '.join(details)}"


def retry_at(
    causes: Collection[str],
    *,
    now: datetime,
    after_capacity_seconds: int,
    after_transient_seconds: int,
) -> datetime | None:
    """Return when the same request may be accepted; None if repeating it does not help.

    The latest time of all causes wins; structural causes contribute none.

    Args:
        causes: ``capacity``, ``transient`` or ``structural``, in any order and number.
        now: The present, with a time zone.
        after_capacity_seconds: Wait after a lack of capacity or cores.
        after_transient_seconds: Wait after a timeout, a lock or missing data.

    Returns:
        A time in UTC, whole seconds (floor).

    Raises:
        ValueError: A cause is unknown.

    Source: spec liquid, 11.5.
    """
    seconds_after: dict[str, int] = {
        Cause.CAPACITY: after_capacity_seconds,
        Cause.TRANSIENT: after_transient_seconds,
    }
    unknown = set(causes) - {*seconds_after, Cause.STRUCTURAL}
    if unknown:
        raise ValueError(f"unknown causes of a rejection: {', '.join(sorted(unknown))}")
    waits = [seconds_after[cause] for cause in causes if cause != Cause.STRUCTURAL]
    if not waits:
        return None
    return (now.astimezone(UTC) + timedelta(seconds=max(waits))).replace(microsecond=0)


def retry_delay_seconds(*, elapsed_seconds: int, base_seconds: int, cap_seconds: int) -> int:
    """Return how long to wait before the next try: the base, doubled with the time spent so far.

    Args:
        elapsed_seconds: Time since the commitment became ``Reserving``.
        base_seconds: First wait; 0 means at once, always.
        cap_seconds: Longest wait; 0 means none.

    Source: spec commitments, 8.9.
    """
    step_seconds = base_seconds
    for _ in range(MAX_BACKOFF_DOUBLINGS):
        if elapsed_seconds < step_seconds:
            break
        step_seconds *= 2
    return min(step_seconds, cap_seconds) if cap_seconds else step_seconds


def cores_decision(
    total_vcpus: int | None,
    held_vcpus: int,
    requested_vcpus: int,
    *,
    may_reject: bool = True,
    is_rejected_already: bool = False,
) -> CoresDecision:
    """Decide a request for cores of one flavor group in one zone; no slots are ever made for it.

    Args:
        total_vcpus: Cores of the empty datacenter; None when not known yet, 0 when there are none.
        held_vcpus: Accepted by other active cores commitments of the same group and zone.
        requested_vcpus: Asked for, including what the commitment itself holds already.
        may_reject: Whether "no" may be answered; otherwise the request waits.
        is_rejected_already: Whether this generation of the commitment was rejected before.

    Source: spec commitments, 8.5.
    """
    if is_rejected_already:
        return CoresDecision(outcome=Ruling.REJECTED)
    if total_vcpus is None:
        return CoresDecision(
            outcome=Ruling.RESERVING,
            message=WAITING_FOR_CORES,
            cause=Cause.TRANSIENT,
            retry_seconds=CALLER_WAITS_RETRY_SECONDS if may_reject else None,
        )
    available_vcpus = total_vcpus - held_vcpus
    if available_vcpus >= requested_vcpus:
        return CoresDecision(outcome=Ruling.ACCEPTED)
    return CoresDecision(
        outcome=Ruling.REJECTED if may_reject else Ruling.RESERVING,
        message=cores_headroom_message(available_vcpus, requested_vcpus),
        cause=Cause.CAPACITY,
    )
