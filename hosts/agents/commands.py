"""What operators tell the agent of a host to do, with its next heartbeat (spec hosts, D.6).

A command stays until the agent says that it is done: told twice, it is harmless. Locks: the agent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final
from uuid import uuid4

from django.db import models, transaction

from hosts.agents.errors import AgentConflict, NoAgent
from hosts.agents.keys import actor_of
from hosts.agents.models import HostAgent
from hosts.agents.workloads import lock_agent
from journal.actors import Actor
from journal.errors import InvalidInput
from journal.services import Change, record_changes

MOST_OPEN: Final = 8
LONGEST_MESSAGE: Final = 500


class AgentCommand(models.TextChoices):
    """What an agent can be told to do."""

    REPORT = "report", "report"
    RESYNC = "resync", "resync"
    CLEANUP = "cleanup", "cleanup"
    ROTATE_KEY = "rotate-key", "rotate-key"


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """What an agent says of a command."""

    id: str
    is_ok: bool
    message: str = ""


def command_agent(
    host_name: str, command: AgentCommand, *, actor: Actor, request_id: str, reason: str
) -> str:
    """Tell an agent to do something; return the command's id, of the same one if it waits already.

    Raises:
        InvalidInput: There is no reason.
        NoAgent: None of the host enrolled, or it was decommissioned.
        AgentConflict: Too many commands wait.
    """
    if not reason.strip():
        raise InvalidInput("a reason is needed", field="reason")
    with transaction.atomic():
        known = HostAgent.objects.filter(host_name=host_name, decommissioned_at__isnull=True)
        pk = known.values_list("pk", flat=True).first()
        if pk is None:
            raise NoAgent(host_name)
        agent = lock_agent(pk)
        waiting = {one["command"]: one["id"] for one in agent.commands}
        if command.value in waiting:
            return str(waiting[command.value])
        if len(agent.commands) >= MOST_OPEN:
            raise AgentConflict(
                f"{len(agent.commands)} commands wait for the agent", code="too_many_commands"
            )
        identity = str(uuid4())
        agent.commands = [*agent.commands, {"id": identity, "command": command.value}]
        agent.save(update_fields=["commands"])
        facts = {"command": command.value, "id": identity}
        change = _change("host_agent_commanded", host_name, facts, reason=reason)
        record_changes([change], actor=actor, request_id=request_id)
    return identity


def end_commands(agent_pk: int, done: Sequence[Done], *, request_id: str) -> None:
    """Forget commands that an agent says are done; ones that it was not told are ignored."""
    with transaction.atomic():
        agent = lock_agent(agent_pk)
        waiting = {one["id"]: one["command"] for one in agent.commands}
        ended = {one.id: one for one in done if one.id in waiting}
        if not ended:
            return
        agent.commands = [one for one in agent.commands if one["id"] not in ended]
        agent.save(update_fields=["commands"])
        changes = [
            _change(
                "host_agent_command_done" if one.is_ok else "host_agent_command_failed",
                agent.host_name,
                {"command": waiting[one.id], "id": one.id},
                reason=one.message,
            )
            for one in ended.values()
        ]
        record_changes(changes, actor=actor_of(agent), request_id=request_id)


def _change(action: str, host_name: str, facts: Mapping[str, object], *, reason: str) -> Change:
    return Change(
        action=action, object_type="host", object_id=host_name, after=facts, reason=reason
    )
