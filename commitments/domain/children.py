"""What the slots of a commitment say together about its present generation (commitments, 8.6)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from commitments.domain.accounting import WAITING_FOR_PLACEMENT, slots_message


class ChildrenOutcome(StrEnum):
    """Where the slots of a commitment stand."""

    PENDING = "pending"
    FAILED = "failed"
    READY = "ready"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildView:
    """One slot as its commitment sees it.

    Attributes:
        is_ready: Status of its Ready condition; None when not set, or unknown.
        echoed_generation: Generation of the commitment that this condition belongs to.
    """

    is_ready: bool | None
    echoed_generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildrenStatus:
    """What the slots say.

    Attributes:
        outcome: Their verdict.
        message: Why they are not ready; empty when they are.
        ready: How many are ready for this generation.
    """

    outcome: ChildrenOutcome
    message: str = ""
    ready: int = 0


def children_status(
    children: Iterable[ChildView], *, expected: int, generation: int
) -> ChildrenStatus:
    """Return where the slots of a commitment stand.

    A condition from an earlier generation counts neither for nor against; one that failed outweighs
    those that wait.

    Args:
        children: The slots.
        expected: How many there must be.
        generation: Present generation of the commitment.

    Source: spec commitments, 8.6.
    """
    ready = failed = 0
    for child in children:
        if child.echoed_generation == generation and child.is_ready is not None:
            ready += child.is_ready
            failed += not child.is_ready
    if failed:
        message = slots_message(ready, expected)
        return ChildrenStatus(outcome=ChildrenOutcome.FAILED, message=message, ready=ready)
    if ready < expected:
        return ChildrenStatus(
            outcome=ChildrenOutcome.PENDING, message=WAITING_FOR_PLACEMENT, ready=ready
        )
    return ChildrenStatus(outcome=ChildrenOutcome.READY, ready=ready)
