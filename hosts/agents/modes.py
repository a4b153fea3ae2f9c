"""What operators let agents do, and the end of an agent (spec hosts, D.1, D.3, D.6).

Locks: the lease, then the agent, then its workloads.
"""

from __future__ import annotations

from typing import Any, Final
from uuid import uuid4

from django.db import transaction

from core.prepared import fetch
from hosts.agents.cells import forget_cells
from hosts.agents.errors import AgentConflict, NoAgent
from hosts.agents.hooks import count_uses, tell_modes_changed
from hosts.agents.leases import forget_lease
from hosts.agents.models import AgentMode, HostAgent
from hosts.agents.resources import forget_resources
from hosts.agents.waking import wake
from hosts.agents.workloads import delete_workloads, lock_agent
from hosts.domain.workloads import WorkloadState
from hosts.feed.reported import keep_reported_instances
from hosts.models import Instance
from journal.actors import Actor
from journal.clock import database_now
from journal.errors import InvalidInput
from journal.services import Change, record_changes
from journal.statements import execute

# Milliseconds: fewer workloads are made than that, so a later restoration goes beyond an earlier.
_BEYOND_ALL_IDS: Final = """
SELECT setval(ids, greatest(nextval(ids), (extract(epoch FROM clock_timestamp()) * 1000)::bigint))
  FROM CAST(pg_get_serial_sequence('hosts_workload', 'id') AS regclass) AS ids
"""

#: As the partial index has it, so that it costs the same with any number of agents.
_ANY_ENFORCES: Final = """
SELECT EXISTS (SELECT FROM hosts_hostagent WHERE mode = 'enforce' AND decommissioned_at IS NULL)
"""


class AgentBusy(AgentConflict):
    """The agent still makes something, or its host has VMs or slots."""

    code = "agent_in_use"


def does_any_enforce() -> bool:
    """Return whether any agent is asked to make anything; asked by each change of slots."""
    return bool(fetch(_ANY_ENFORCES)[0][0])


def set_mode(
    host_name: str, mode: AgentMode, *, actor: Actor, request_id: str, reason: str = ""
) -> None:
    """Let an agent do more or less; one that enforces no more removes what it made.

    Raises:
        NoAgent: None of the host enrolled, or it was decommissioned.
    """
    with transaction.atomic():
        agent = _locked(host_name)
        before = agent.mode
        if before == mode:
            return
        agent.mode = mode
        agent.save(update_fields=["mode"])
        if mode != AgentMode.ENFORCE:
            made = agent.workloads.filter(to_delete=False).values_list("pk", flat=True)
            why = reason or f"the agent's mode is {mode.value}"
            delete_workloads(agent.pk, made, reason=why, actor=actor, request_id=request_id)
        if mode == AgentMode.NONE:
            forget_resources(host_name)
            forget_cells(host_name)
        change = Change(
            action="host_agent_mode_set",
            object_type="host",
            object_id=host_name,
            before={"mode": before},
            after={"mode": mode.value},
            reason=reason,
        )
        record_changes([change], actor=actor, request_id=request_id)
        tell_modes_changed()


def decommission(
    host_name: str, *, actor: Actor, request_id: str, reason: str, is_forced: bool = False
) -> None:
    """Have nothing more to do with an agent: each of its requests is told that this is the end.

    Its keys stay known, so that it is told; what it was asked counts as deleted. It may enrol anew.

    Raises:
        InvalidInput: There is no reason.
        NoAgent: None of the host enrolled, or it was decommissioned.
        AgentBusy: It has workloads, its host VMs or slots, and ``is_forced`` is not set.
    """
    if not reason.strip():
        raise InvalidInput("a reason is needed", field="reason")
    with transaction.atomic():
        forget_lease(_known(host_name))
        agent = _locked(host_name)
        held = agent.workloads.exclude(state=WorkloadState.DELETED.value)
        vms = Instance.objects.filter(host__name=host_name).count()
        uses: dict[str, Any] = {"workloads": held.count(), "vms": vms, **count_uses(host_name)}
        if not is_forced and any(uses.values()):
            words = ", ".join(f"{count} {what}" for what, count in uses.items() if count)
            raise AgentBusy(f"the agent or its host {host_name} still has {words}", **uses)
        now = database_now()
        held.update(
            state=WorkloadState.DELETED.value,
            state_since=now,
            to_delete=True,
            delete_reason="the agent was decommissioned",
        )
        before = agent.mode
        agent.mode, agent.decommissioned_at, agent.commands = AgentMode.NONE, now, []
        agent.save(update_fields=["mode", "decommissioned_at", "commands"])
        forget_resources(host_name)
        forget_cells(host_name)
        change = Change(
            action="host_agent_decommissioned",
            object_type="host",
            object_id=host_name,
            before={"mode": before},
            after={"mode": agent.mode, "vms": vms},
            reason=reason,
        )
        record_changes([change], actor=actor, request_id=request_id)
        wake([agent.uuid])
    keep_reported_instances({host_name: None})


def renew_timelines(*, actor: Actor, request_id: str) -> int:
    """Have every agent ask for everything anew, after a backup was restored; return how many.

    Ids that were given after the backup was made are known to agents, and to us no more: none of
    them is given again.
    """
    with transaction.atomic():
        execute(_BEYOND_ALL_IDS)
        agents = list(HostAgent.objects.order_by("pk").select_for_update(no_key=True).only("pk"))
        for agent in agents:
            agent.timeline = uuid4()
        HostAgent.objects.bulk_update(agents, ["timeline"], batch_size=1000)
        change = Change(
            action="host_timelines_renewed",
            object_type="host_agent",
            object_id="all",
            after={"agents": len(agents)},
        )
        record_changes([change], actor=actor, request_id=request_id)
        wake(HostAgent.objects.values_list("uuid", flat=True))
    return len(agents)


def _locked(host_name: str) -> HostAgent:
    agent = lock_agent(_known(host_name))
    if agent.decommissioned_at is not None:
        raise NoAgent(host_name)
    return agent


def _known(host_name: str) -> int:
    agents = HostAgent.objects.filter(host_name=host_name, decommissioned_at__isnull=True)
    pk = agents.values_list("pk", flat=True).first() if host_name.isprintable() else None
    if pk is None:
        raise NoAgent(host_name)
    return pk
