"""What comes next of VMs on a host that is to become empty (spec hosts, C.3, Eviction)."""

from __future__ import annotations

from typing import Any

import pytest

from hosts.domain.evicting import Step, next_step


@pytest.mark.parametrize(
    ("vm", "step"),
    [
        ({"status": "MIGRATING"}, Step.WAIT),
        ({"status": "RESIZE", "task_state": "deleting"}, Step.WAIT),
        ({"status": "ERROR", "task_state": "deleting"}, Step.LOOK),
        ({"status": "VERIFY_RESIZE"}, Step.CONFIRM),
        ({"status": "ACTIVE", "task_state": "deleting"}, Step.DELETED),
        ({"status": "ACTIVE"}, Step.LIVE),
        ({"status": "PAUSED", "power_state": 1}, Step.LIVE),
        ({"status": "SHUTOFF", "power_state": 4}, Step.COLD),
        ({"status": "no such word"}, Step.COLD),
    ],
)
def test_the_table(vm: dict[str, Any], step: Step) -> None:
    assert next_step(**vm) is step


def test_those_that_somebody_must_look_at_come_first() -> None:
    assert next(iter(Step)) is Step.LOOK
