from __future__ import annotations

import pytest

from commitments.domain.children import ChildrenOutcome, ChildView, children_status


def child(echoed: int, *, is_ready: bool | None) -> ChildView:
    return ChildView(is_ready=is_ready, echoed_generation=echoed)


PENDING, FAILED, READY = ChildrenOutcome.PENDING, ChildrenOutcome.FAILED, ChildrenOutcome.READY


@pytest.mark.parametrize(
    ("children", "expected", "outcome", "message"),
    [
        pytest.param(
            [child(1, is_ready=False)],
            1,
            PENDING,
            "waiting for reservation placement",
            id="Ready False, echoed generation 1",
        ),
        pytest.param(
            [child(2, is_ready=False)],
            1,
            FAILED,
            "insufficient capacity: 0/1 reservation slots could be placed",
            id="Ready False, echoed 2",
        ),
        pytest.param([child(2, is_ready=True)], 1, READY, "", id="Ready True, echoed 2"),
        pytest.param(
            [child(2, is_ready=None)],
            1,
            PENDING,
            "waiting for reservation placement",
            id="no condition, echoed 2",
        ),
        pytest.param(
            [child(2, is_ready=True)],
            2,
            PENDING,
            "waiting for reservation placement",
            id="fewer than expected",
        ),
        pytest.param(
            [child(2, is_ready=True), child(2, is_ready=False), child(1, is_ready=False)],
            4,
            FAILED,
            "insufficient capacity: 1/4 reservation slots could be placed",
            id="failure wins over pending",
        ),
        pytest.param([], 0, READY, "", id="none expected"),
    ],
)
def test_slots_speak_for_the_generation_that_they_echo(
    children: list[ChildView], expected: int, outcome: ChildrenOutcome, message: str
) -> None:
    status = children_status(children, expected=expected, generation=2)
    assert (status.outcome, status.message) == (outcome, message)
