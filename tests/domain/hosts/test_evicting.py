"""What comes next of VMs on a host that is to become empty (spec hosts, C.3, Eviction)."""

from __future__ import annotations

from typing import Any

import pytest

from hosts.domain.evicting import LeavingVM, Step, Told, how_it_moves, next_step, next_to_move


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


def vm(uuid: str, status: str = "ACTIVE", host: str = "h1", **facts: Any) -> LeavingVM:
    return LeavingVM(uuid=uuid, host=host, status=status, **facts)


@pytest.mark.parametrize(
    ("one", "told"),
    [
        (None, Told.LEFT),
        (vm("a", host="h2"), Told.LEFT),
        (vm("a", "SHUTOFF", host="h2"), Told.LEFT),
        (vm("a", "VERIFY_RESIZE", host="h2"), Told.CONFIRM),
        (vm("a", "VERIFY_RESIZE"), Told.FAILED),
        (vm("a", "MIGRATING"), Told.MOVES),
        (vm("a", "RESIZE", host="h2"), Told.MOVES),
        (vm("a", task_state="migrating"), Told.MOVES),
        (vm("a", "ERROR", host="h2"), Told.FAILED),
        (vm("a"), Told.FAILED),
    ],
)
def test_how_one_stands_that_was_told_to_leave(one: LeavingVM | None, told: Told) -> None:
    assert how_it_moves(one, host="h1") is told


@pytest.mark.parametrize(
    ("vms", "failed", "found"),
    [
        ([], "", None),
        ([vm("a"), vm("b")], "", "b"),
        ([vm("a"), vm("b")], "b", "a"),
        ([vm("a"), vm("b")], "ab", None),
        ([vm("a"), vm("b", "ERROR"), vm("c", task_state="deleting")], "", "a"),
        ([vm("a"), vm("b", "VERIFY_RESIZE")], "", "a"),
        ([vm("a", "MIGRATING"), vm("b")], "", None),
        ([vm("a", task_state="rebooting"), vm("b")], "", None),
    ],
)
def test_who_leaves_next(vms: list[LeavingVM], failed: str, found: str | None) -> None:
    chosen = next_to_move(vms, failed=failed)
    assert (None if chosen is None else chosen.uuid) == found
