"""How a VM leaves a host that is to become empty (spec hosts, C.3, Eviction).

We say what comes next of it and do nothing ourselves: who moves VMs is the cloud.
"""

from __future__ import annotations

from enum import StrEnum
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
