"""Transition times, order of states, damping (spec commitments, 2.7, 8.1, 8.9; liquid, 4.5)."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

MAX_RESERVING_AGE_FOR_SLOWDOWN = timedelta(minutes=30)
"""From this age on a waiting commitment is tried again by its timer alone."""


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
