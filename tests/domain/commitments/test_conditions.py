from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from commitments.domain.conditions import (
    NEXT_STATUSES,
    ReadyCondition,
    commitment_changed_at,
    is_allowed_transition,
    is_nudge_damped,
    reservation_changed_at,
)
from commitments.domain.statuses import CommitmentStatus

BEFORE = datetime(2026, 3, 1, 12, tzinfo=UTC)
NOW = datetime(2026, 3, 1, 13, tzinfo=UTC)

PLANNED, PENDING, GUARANTEED, CONFIRMED, SUPERSEDED, EXPIRED = CommitmentStatus


def stored(status: bool | None, reason: str) -> ReadyCondition:
    return ReadyCondition(status=status, reason=reason, changed_at=BEFORE)


@pytest.mark.parametrize(
    ("before", "status", "reason", "resets_timer", "changed_at"),
    [
        pytest.param(None, False, "Reserving", False, NOW, id="first condition, False"),
        pytest.param(None, True, "Accepted", False, NOW, id="first condition, True"),
        pytest.param(
            stored(False, "Reserving"), False, "Reserving", False, BEFORE, id="same False, same why"
        ),
        pytest.param(
            stored(False, "Reserving"), False, "Reserving", True, NOW, id="same False, timer reset"
        ),
        pytest.param(
            stored(False, "Planned"), False, "Reserving", False, NOW, id="False for another reason"
        ),
        pytest.param(
            stored(True, "Accepted"), False, "Reserving", False, NOW, id="True becomes False"
        ),
        pytest.param(
            stored(True, "Accepted"), False, "Accepted", False, NOW, id="status changes alone"
        ),
        pytest.param(
            stored(None, "Reserving"), False, "Reserving", False, NOW, id="Unknown becomes False"
        ),
        pytest.param(
            stored(False, "Reserving"), True, "Accepted", False, NOW, id="False becomes True"
        ),
        pytest.param(stored(True, "Accepted"), True, "Accepted", False, BEFORE, id="stays True"),
        pytest.param(
            stored(True, "Accepted"), True, "Other", False, BEFORE, id="stays True, other reason"
        ),
        pytest.param(
            stored(True, "Accepted"), True, "Accepted", True, BEFORE, id="no timer to reset"
        ),
    ],
)
def test_transition_time_of_a_commitment_follows_status_and_reason(
    before: ReadyCondition | None,
    status: bool,
    reason: str,
    resets_timer: bool,
    changed_at: datetime,
) -> None:
    answer = commitment_changed_at(
        before, status=status, reason=reason, now=NOW, resets_timer=resets_timer
    )
    assert answer == changed_at


@pytest.mark.parametrize(
    ("before", "status", "changed_at"),
    [
        pytest.param(None, False, NOW, id="first condition"),
        pytest.param(stored(False, "NoHostsFound"), False, BEFORE, id="stays False"),
        pytest.param(stored(False, "NoHostsFound"), True, NOW, id="False becomes True"),
        pytest.param(stored(True, "ReservationActive"), False, NOW, id="True becomes False"),
        pytest.param(stored(False, "NoHostsFound"), None, NOW, id="False becomes Unknown"),
        pytest.param(stored(None, "InstanceNotFound"), None, BEFORE, id="stays Unknown"),
    ],
)
def test_transition_time_of_a_reservation_follows_the_status_alone(
    before: ReadyCondition | None, status: bool | None, changed_at: datetime
) -> None:
    assert reservation_changed_at(before, status=status, now=NOW) == changed_at


@pytest.mark.parametrize(
    ("status", "following"),
    [
        pytest.param(PLANNED, {PENDING, CONFIRMED, SUPERSEDED, EXPIRED}, id="planned"),
        pytest.param(PENDING, {CONFIRMED, SUPERSEDED, EXPIRED}, id="pending"),
        pytest.param(GUARANTEED, {CONFIRMED, SUPERSEDED, EXPIRED}, id="guaranteed"),
        pytest.param(CONFIRMED, {SUPERSEDED, EXPIRED}, id="confirmed"),
        pytest.param(SUPERSEDED, set(), id="superseded"),
        pytest.param(EXPIRED, set(), id="expired"),
    ],
)
def test_states_follow_each_other_as_limes_defines(
    status: CommitmentStatus, following: set[CommitmentStatus]
) -> None:
    allowed = {new for new in CommitmentStatus if is_allowed_transition(status, new)}
    assert allowed == following | {status}


@pytest.mark.parametrize("status", CommitmentStatus)
def test_commitments_may_appear_and_disappear_in_any_state(status: CommitmentStatus) -> None:
    assert is_allowed_transition(None, status)
    assert is_allowed_transition(status, None)


def test_every_state_is_in_the_table() -> None:
    assert set(NEXT_STATUSES) == set(CommitmentStatus)


HALF_AN_HOUR = timedelta(minutes=30)


@pytest.mark.parametrize(
    ("reason", "age", "observed", "child", "is_damped"),
    [
        pytest.param("Reserving", timedelta(minutes=31), 2, 2, True, id="waits for long"),
        pytest.param("Reserving", HALF_AN_HOUR, 2, 2, False, id="waits for half an hour"),
        pytest.param("Accepted", timedelta(hours=9), 2, 2, False, id="does not wait"),
        pytest.param("Reserving", timedelta(hours=9), 1, 2, False, id="new generation"),
        pytest.param("Reserving", timedelta(hours=9), 2, 1, False, id="slot of an old generation"),
    ],
)
def test_news_of_slots_are_damped_while_a_commitment_waits_for_long(
    reason: str, age: timedelta, observed: int, child: int, is_damped: bool
) -> None:
    condition = ReadyCondition(status=False, reason=reason, changed_at=NOW - age)
    damped = is_nudge_damped(
        condition, observed_generation=observed, generation=2, child_generation=child, now=NOW
    )
    assert damped is is_damped


def test_news_of_slots_count_before_there_is_a_condition() -> None:
    assert not is_nudge_damped(
        None, observed_generation=None, generation=1, child_generation=1, now=NOW
    )
