from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from commitments.domain.story import Period, StoryEvent, periods

START = datetime(2026, 3, 1, tzinfo=UTC)


def event(hours: int, action: str, state: str = "") -> StoryEvent:
    return StoryEvent(
        at=START + timedelta(hours=hours),
        action=action,
        actor="limes",
        state=state,
        reason=f"because {hours}",
    )


def lived(*happenings: StoryEvent) -> list[tuple[str, str, int, int | None]]:
    return [_plain(one) for one in periods(happenings)]


def _plain(one: Period) -> tuple[str, str, int, int | None]:
    def hours(at: datetime) -> int:
        return int((at - START).total_seconds()) // 3600

    until = None if one.until is None else hours(one.until)
    return one.state, one.condition, hours(one.since), until


@pytest.mark.parametrize(
    ("happenings", "expected"),
    [
        pytest.param([], [], id="nothing recorded"),
        pytest.param(
            [
                event(0, "commitment_synced_new", "planned"),
                event(1, "commitment_planned", "planned"),
                event(5, "commitment_accepted", "confirmed"),
                event(9, "commitment_released", "expired"),
            ],
            [
                ("planned", "not decided", 0, 1),
                ("planned", "Planned", 1, 5),
                ("confirmed", "Accepted", 5, 9),
                ("expired", "released", 9, None),
            ],
            id="from planned to expired",
        ),
        pytest.param(
            [
                event(0, "commitment_accepted", "confirmed"),
                event(1, "commitment_accepted", "confirmed"),
                event(2, "slot_vms_changed"),
            ],
            [("confirmed", "Accepted", 0, None)],
            id="what changes neither state nor decision prolongs a period",
        ),
        pytest.param(
            [
                event(0, "commitment_accepted", "confirmed"),
                event(3, "commitment_deleted"),
                event(7, "commitment_accepted", "confirmed"),
            ],
            [("confirmed", "Accepted", 0, 3), ("confirmed", "Accepted", 7, None)],
            id="deleted and made again",
        ),
        pytest.param([event(0, "commitment_removed")], [], id="removed, and nothing else known"),
    ],
)
def test_events_tell_the_periods_of_a_life(
    happenings: list[StoryEvent], expected: list[tuple[str, str, int, int | None]]
) -> None:
    assert lived(*happenings) == expected


def test_period_says_who_began_it_and_why() -> None:
    (one,) = periods([event(4, "commitment_rejected", "confirmed")])
    assert (one.actor, one.reason) == ("limes", "because 4")
