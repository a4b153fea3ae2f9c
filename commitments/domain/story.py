"""The periods of a commitment's life, from what was recorded of it (issue: the whole story)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

CONDITION_OF_ACTION = {
    "commitment_accepted": "Accepted",
    "commitment_planned": "Planned",
    "commitment_reserving": "Reserving",
    "commitment_rejected": "Rejected",
    "commitment_released": "released",
}
UNDECIDED = "not decided"
UNDECIDED_ACTIONS = frozenset({"commitment_synced", "commitment_synced_new"})
ENDING_ACTIONS = frozenset({"commitment_deleted", "commitment_removed"})


@dataclass(frozen=True, slots=True, kw_only=True)
class StoryEvent:
    """A recorded event, as far as it tells of a state.

    Attributes:
        at: When.
        action: What, as recorded.
        state: State in Limes afterwards; empty when the event does not say.
        reason: Why, for a person.
    """

    at: datetime
    action: str
    actor: str
    state: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Period:
    """A time in which neither the state in Limes nor our decision changed.

    Attributes:
        state: State in Limes.
        condition: Our decision; ``not decided`` until there is one.
        since: Start.
        until: End; None while it lasts.
        actor: Who began it.
        reason: Why it began.
    """

    state: str
    condition: str
    since: datetime
    until: datetime | None
    actor: str
    reason: str


def periods(happenings: Iterable[StoryEvent]) -> tuple[Period, ...]:
    """Return the periods that events tell of, in order of time.

    Events that change neither state nor decision prolong the period they fall into; the removal of
    the commitment ends the last one.

    Args:
        happenings: Events of one commitment, oldest first.
    """
    found: list[Period] = []
    for one in happenings:
        if one.action in ENDING_ACTIONS:
            _end_last(found, one.at)
            continue
        condition = CONDITION_OF_ACTION.get(one.action)
        if condition is None and one.action not in UNDECIDED_ACTIONS:
            continue
        last = found[-1] if found and found[-1].until is None else None
        state = one.state or (last.state if last is not None else "")
        if condition is None:
            condition = UNDECIDED
        if last is not None and (last.state, last.condition) == (state, condition):
            continue
        _end_last(found, one.at)
        found.append(
            Period(
                state=state,
                condition=condition,
                since=one.at,
                until=None,
                actor=one.actor,
                reason=one.reason,
            )
        )
    return tuple(found)


def _end_last(found: list[Period], at: datetime) -> None:
    if found and found[-1].until is None:
        last = found[-1]
        found[-1] = Period(
            state=last.state,
            condition=last.condition,
            since=last.since,
            until=at,
            actor=last.actor,
            reason=last.reason,
        )
