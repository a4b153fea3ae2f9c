"""Who acts: every service takes an actor and every audit entry names one."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Final

#: Columns that name one have room for so much.
LONGEST_ACTOR_NAME: Final = 255
_DIGEST_BYTES: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Actor:
    """A person, service or task that changes something.

    What only Keystone knows is empty for holders of static tokens, tasks and commands.

    Attributes:
        name: Stable name for the audit trail, such as ``limes`` or ``task:commitments.repair``. One
            too long for it is cut, and a digest at its end tells it from others.
        roles: Roles of its token; empty for tasks and commands.
        user_id: Keystone user.
        user_domain_id: Domain the user belongs to.
        project_id: Project the token is scoped to.
        project_domain_id: Domain the project belongs to.
        domain_id: Domain the token is scoped to; empty for tokens of a project.
        system_scope: ``all`` for a token of the whole system, else empty.
        is_admin_project: Whether Keystone calls the project the administrators' one.
        service_roles: Roles of the valid service token that came along; empty without one.
    """

    name: str
    roles: frozenset[str] = frozenset()
    user_id: str = ""
    user_name: str = ""
    user_domain_id: str = ""
    user_domain_name: str = ""
    project_id: str = ""
    project_name: str = ""
    project_domain_id: str = ""
    project_domain_name: str = ""
    domain_id: str = ""
    domain_name: str = ""
    system_scope: str = ""
    is_admin_project: bool = False
    service_roles: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        """Shorten the name, if need be."""
        if len(self.name) > LONGEST_ACTOR_NAME:
            digest = hashlib.blake2b(
                self.name.encode("utf-8", "surrogatepass"), digest_size=_DIGEST_BYTES
            ).hexdigest()
            kept = self.name[: LONGEST_ACTOR_NAME - len(digest) - 1]
            object.__setattr__(self, "name", f"{kept}~{digest}")


def task_actor(task_name: str) -> Actor:
    """Return the actor of a background task."""
    return Actor(name=f"task:{task_name}")


def command_actor(command_name: str) -> Actor:
    """Return the actor of a management command."""
    return Actor(name=f"command:{command_name}")
