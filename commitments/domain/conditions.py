"""Transition times, order of states, damping (spec commitments, 2.7, 8.1, 8.9; liquid, 4.5)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from types import MappingProxyType

from commitments.domain.statuses import FINAL_STATUSES, CommitmentStatus

RESERVING = "Reserving"
MAX_RESERVING_AGE_FOR_SLOWDOWN = timedelta(minutes=30)
"""From this age on a waiting commitment is tried again by its timer alone."""

NEXT_STATUSES: Mapping[CommitmentStatus, frozenset[CommitmentStatus]] = MappingProxyType(
    {
        CommitmentStatus.PLANNED: FINAL_STATUSES
        | {CommitmentStatus.PENDING, CommitmentStatus.CONFIRMED},
        CommitmentStatus.PENDING: FINAL_STATUSES | {CommitmentStatus.CONFIRMED},
        CommitmentStatus.GUARANTEED: FINAL_STATUSES | {CommitmentStatus.CONFIRMED},
        CommitmentStatus.CONFIRMED: FINAL_STATUSES,
        CommitmentStatus.SUPERSEDED: frozenset(),
        CommitmentStatus.EXPIRED: frozenset(),
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadyCondition:
    """A Ready condition as it is stored.

    Attributes:
        status: True, False, or None for Unknown.
        reason: Why, as a code.
        changed_at: Start of the present status; for a False one of a commitment, of its reason.
    """

    status: bool | None
    reason: str
    changed_at: datetime


def commitment_changed_at(
    stored: ReadyCondition | None,
    *,
    status: bool | None,
    reason: str,
    now: datetime,
    resets_timer: bool = False,
) -> datetime:
    """Return the transition time to write with a commitment's Ready condition.

    A False condition keeps its time only while the reason stays and nobody asks for a reset,
    because the wait between retries is measured from it. Others keep it while the status stays.

    Args:
        stored: What is stored; None when the condition was never set.
        status: Status to write.
        reason: Reason to write.
        now: The present.
        resets_timer: Whether retries shall start over; meaningless unless ``status`` is False.

    Source: spec commitments, 2.7.
    """
    if status is False and stored is not None and (stored.reason != reason or resets_timer):
        return now
    return reservation_changed_at(stored, status=status, now=now)


def reservation_changed_at(
    stored: ReadyCondition | None, *, status: bool | None, now: datetime
) -> datetime:
    """Return the transition time to write with a reservation's Ready condition.

    The rule of Kubernetes: the time changes with the status, whatever the reason.

    Source: spec commitments, 2.7.
    """
    if stored is None or stored.status is not status:
        return now
    return stored.changed_at


def is_allowed_transition(old: CommitmentStatus | None, new: CommitmentStatus | None) -> bool:
    """Return whether a commitment may go from one state to another.

    It may appear in any state (``old`` None), disappear from any (``new`` None), and stay in its
    state while its amount or end changes.

    Source: spec liquid, 4.5.
    """
    if old is None or new is None:
        return True
    return old is new or new in NEXT_STATUSES[old]


def is_nudge_damped(
    stored: ReadyCondition | None,
    *,
    observed_generation: int | None,
    generation: int,
    child_generation: int,
    now: datetime,
) -> bool:
    """Return whether news of a slot must wait for the timer of its commitment.

    A commitment that waits for capacity for long is tried again by its timer alone. News of another
    generation, on either side, always count.

    Args:
        stored: Ready condition of the commitment; None when it was never set.
        observed_generation: Generation that the condition belongs to.
        generation: Present generation of the commitment.
        child_generation: Generation for which the slot was written.
        now: The present.

    Source: spec commitments, 8.9 (watch damping).
    """
    return (
        stored is not None
        and stored.reason == RESERVING
        and observed_generation == generation
        and child_generation == generation
        and now - stored.changed_at > MAX_RESERVING_AGE_FOR_SLOWDOWN
    )
