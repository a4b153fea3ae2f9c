"""How VMs leave a host that is to become empty, one after the other (spec hosts, C.3, Eviction)."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import Enum, StrEnum, auto
from typing import Final


class Step(StrEnum):
    """What comes next of a VM; those that somebody must look at first."""

    LOOK = "needs somebody: it is in an error"
    LIVE = "live migration"
    COLD = "cold migration"
    CONFIRM = "its resize is to be confirmed"
    WAIT = "is moving"
    DELETED = "is being deleted"


_RUNNING: Final = 1


def next_step(*, status: str, task_state: str = "", power_state: int = 0) -> Step:
    """Return what comes next of a VM that is still on the host: the first row that fits.

    Args:
        status: As Nova says it: ``ACTIVE``, ``ERROR``, ...
        task_state: Likewise; empty for none.
        power_state: 1 while it runs.
    """
    match status:
        case "MIGRATING" | "RESIZE":
            return Step.WAIT
        case "ERROR":
            return Step.LOOK
        case "VERIFY_RESIZE":
            return Step.CONFIRM
    if task_state == "deleting":
        return Step.DELETED
    return Step.LIVE if status == "ACTIVE" or power_state == _RUNNING else Step.COLD


@dataclass(frozen=True, slots=True, kw_only=True)
class LeavingVM:
    """A VM as Nova tells it.

    Attributes:
        host: Name of the compute service that has it.
        task_state: Empty for none.
        power_state: 1 while it runs.
    """

    uuid: str
    host: str
    status: str
    task_state: str = ""
    power_state: int = 0

    @property
    def step(self) -> Step:
        """What comes next of it, if it is on the host."""
        return next_step(
            status=self.status, task_state=self.task_state, power_state=self.power_state
        )


class Told(Enum):
    """How a VM stands that was told to move."""

    LEFT = auto()
    MOVES = auto()
    CONFIRM = auto()
    FAILED = auto()


def how_it_moves(vm: LeavingVM | None, *, host: str) -> Told:
    """Return how a VM stands that was told to leave a host; None is one that was deleted."""
    if vm is None:
        return Told.LEFT
    if vm.status == "ERROR":
        return Told.FAILED
    if vm.task_state or vm.step is Step.WAIT:
        return Told.MOVES
    if vm.host == host:
        return Told.FAILED
    return Told.CONFIRM if vm.status == "VERIFY_RESIZE" else Told.LEFT


def next_to_move(vms: Sequence[LeavingVM], *, failed: Collection[str]) -> LeavingVM | None:
    """Return the VM that leaves a host next: the last one that can; None while one moves.

    Args:
        vms: Those on the host, in Nova's order.
        failed: Uuids of those that lately did not move, whose turn is not now.
    """
    if any(vm.task_state and vm.step is not Step.DELETED for vm in vms):
        return None
    steps = {vm.uuid: vm.step for vm in vms}
    if Step.WAIT in steps.values():
        return None
    movable = (vm for vm in reversed(vms) if steps[vm.uuid] in {Step.LIVE, Step.COLD})
    return next((vm for vm in movable if vm.uuid not in failed), None)
