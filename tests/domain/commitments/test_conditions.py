from __future__ import annotations

from datetime import UTC, datetime

import pytest

from commitments.domain.conditions import (
    ReadyCondition,
    commitment_changed_at,
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
