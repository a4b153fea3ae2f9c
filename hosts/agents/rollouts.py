"""Having hosts run a version of the agent, wave after wave (spec hosts, D.15).

An agent never updates itself: it is told which version is wanted on its host, and says so to
whoever keeps the host's packages. Locks: the rollout's row, then agents in order of their keys.
"""

from __future__ import annotations

import re
from typing import Any, Final

from django.db import IntegrityError, transaction

from hosts.agents.errors import AgentConflict
from hosts.agents.models import HostAgent
from hosts.agents.rollout_models import AgentRollout
from hosts.domain.rollout import RolledAgent, look_at
from journal.actors import Actor
from journal.clock import database_now
from journal.errors import InvalidInput
from journal.services import Change, record_changes
from journal.statements import execute, fetch_rows

VERSION: Final = re.compile(r"[0-9A-Za-z][0-9A-Za-z.+!~_-]{0,63}", re.ASCII)
# Agents that are expected to be heard, and what is wrong with them since a rollout began.
_AGENTS: Final = """
SELECT agent.host_name, coalesce(nullif(host.building_block, ''), host.zone, ''),
       agent.agent_version, coalesce(lease.liveness = 'up', false),
       CASE WHEN agent.health_problem <> '' THEN agent.health_problem
            WHEN EXISTS (SELECT FROM hosts_workload AS made
                          WHERE made.agent_id = agent.id AND made.state = 'failed'
                            AND made.state_since >= %(since)s) THEN 'a reservation failed'
            ELSE '' END
  FROM hosts_hostagent AS agent
  LEFT JOIN hosts_hostlease AS lease ON lease.agent_id = agent.id
  LEFT JOIN hosts_host AS host ON host.name = agent.host_name
 WHERE agent.decommissioned_at IS NULL
 ORDER BY agent.host_name
"""
_WANT: Final = """
UPDATE hosts_hostagent AS agent SET wanted_version = told.version
  FROM unnest(%(hosts)s::text[], %(versions)s::text[]) AS told (host_name, version)
 WHERE agent.host_name = told.host_name AND agent.wanted_version <> told.version
"""


class RolloutConflict(AgentConflict):
    """Another version is being rolled out, or none is."""

    code = "rollout_conflict"


def start_rollout(version: str, *, actor: Actor, request_id: str, reason: str) -> AgentRollout:
    """Have hosts run a version of the agent, from the next look on.

    Raises:
        InvalidInput: There is no reason, or that is no version.
        RolloutConflict: One is open.
    """
    _check_reason(reason)
    if VERSION.fullmatch(version) is None:
        raise InvalidInput("the version must be like 1.2.3", field="version")
    with transaction.atomic():
        open_one = _locked()
        if open_one is not None:
            raise _open_already(open_one.version)
        try:
            with transaction.atomic():
                row = AgentRollout.objects.create(
                    version=version, reason=reason, opened_by=actor.name
                )
        except IntegrityError:
            raise _open_already("another") from None
        _record("agent_rollout_started", row, actor=actor, request_id=request_id, reason=reason)
    return row


def stop_rollout(*, actor: Actor, request_id: str, reason: str) -> AgentRollout:
    """End the rollout: no host is told a version any more; those that have it keep it.

    Raises:
        InvalidInput: There is no reason.
        RolloutConflict: None is open.
    """
    with transaction.atomic():
        row = _open_one(reason)
        row.is_open, row.closed_at = False, database_now()
        row.save(update_fields=["is_open", "closed_at"])
        HostAgent.objects.exclude(wanted_version="").update(wanted_version="")
        _record("agent_rollout_stopped", row, actor=actor, request_id=request_id, reason=reason)
    return row


def resume_rollout(*, actor: Actor, request_id: str, reason: str) -> AgentRollout:
    """Go on with a rollout that was halted; it halts again when too many fail still.

    Raises:
        InvalidInput: There is no reason.
        RolloutConflict: None is open.
    """
    with transaction.atomic():
        row = _open_one(reason)
        row.halted_at = None
        row.save(update_fields=["halted_at"])
        _record("agent_rollout_resumed", row, actor=actor, request_id=request_id, reason=reason)
    return row


def look_at_rollout(*, actor: Actor, request_id: str) -> dict[str, int]:
    """Open the next wave when the last one runs well, halt when agents fail; say how it stands."""
    with transaction.atomic(durable=True):
        row = _locked()
        if row is None:
            return {}
        agents = [
            RolledAgent(
                host=host, wave=wave, runs=version == row.version, is_heard=is_up, problem=problem
            )
            for host, wave, version, is_up, problem in fetch_rows(_AGENTS, {"since": row.opened_at})
        ]
        now = database_now()
        found = look_at(agents, waves=row.waves, opened_at=row.wave_at, now=now)
        before = (row.waves, row.halted_at is None)
        if found.halts and row.halted_at is None:
            row.halted_at = now
        if row.halted_at is None and list(found.waves) != row.waves:
            row.waves, row.wave_at = list(found.waves), now
        row.failing = list(found.failing)
        if found.is_over and row.halted_at is None:
            row.is_open, row.closed_at = False, now
        row.save()
        wanted = {
            one.host: row.version
            if one.runs or (row.halted_at is None and one.wave in row.waves)
            else ""
            for one in agents
        }
        execute(_WANT, {"hosts": list(wanted), "versions": list(wanted.values())})
        if before != (row.waves, row.halted_at is None) or row.closed_at:
            action = "agent_rollout_halted" if row.halted_at else "agent_rollout_wave"
            action = "agent_rollout_ended" if row.closed_at else action
            _record(action, row, actor=actor, request_id=request_id, reason=row.reason)
    return {
        "waves": len(row.waves),
        "running": sum(one.runs for one in agents),
        "failing": len(row.failing),
        "halted": int(row.halted_at is not None),
    }


def _open_already(version: str) -> RolloutConflict:
    return RolloutConflict(f"{version} is being rolled out: stop that first")


def _locked() -> AgentRollout | None:
    return AgentRollout.objects.select_for_update().filter(is_open=True).first()


def _open_one(reason: str) -> AgentRollout:
    _check_reason(reason)
    row = _locked()
    if row is None:
        raise RolloutConflict("no version is being rolled out")
    return row


def _check_reason(reason: str) -> None:
    if not reason.strip():
        raise InvalidInput("a reason is needed", field="reason")


def _record(action: str, row: AgentRollout, **who: Any) -> None:
    reason = who.pop("reason")
    change = Change(
        action=action,
        object_type="agent_rollout",
        object_id=str(row.pk),
        after={
            "version": row.version,
            "waves": row.waves,
            "failing": row.failing,
            "is_halted": row.halted_at is not None,
        },
        reason=reason,
    )
    record_changes([change], **who)
