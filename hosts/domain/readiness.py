"""What a host's conditions say about new VMs and slots (spec scheduling, 7.2)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

# Condition, the status it must have, and what it counts as when it is missing.
_REQUIRED: Final = (
    ("Ready", "True", "missing"),
    ("HypervisorDisabled", "False", "False"),
    ("Terminating", "False", "False"),
)


def hindering_conditions(conditions: Mapping[str, object]) -> tuple[str, ...]:
    """Return the conditions that keep new VMs and slots off a host, for people.

    A host that reports no condition is not hindered by any; one that reports some must also be
    Ready by them, the others may be missing.

    Args:
        conditions: Condition type -> status (``True``, ``False``, ``Unknown``, or a truth value).

    Source: spec scheduling, 7.2; decisions, "host without a Ready condition".
    """
    if not conditions:
        return ()
    stated = {name: str(status) for name, status in conditions.items() if status is not None}
    statuses = [(name, stated.get(name, absent), wanted) for name, wanted, absent in _REQUIRED]
    return tuple(f"{name} is {status}" for name, status, wanted in statuses if status != wanted)
