"""Who acts: every service takes an actor and every audit entry names one."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Actor:
    """A person, service or task that changes something.

    Attributes:
        name: Stable name for the audit trail, such as ``limes`` or ``task:commitments.repair``.
        roles: Roles of its token; empty for tasks and commands.
    """

    name: str
    roles: frozenset[str] = frozenset()


def task_actor(task_name: str) -> Actor:
    """Return the actor of a background task."""
    return Actor(name=f"task:{task_name}")


def command_actor(command_name: str) -> Actor:
    """Return the actor of a management command."""
    return Actor(name=f"command:{command_name}")


ANONYMOUS = Actor(name="anonymous")
