"""Heartbeats, the sweep of leases, fencing (spec hosts, D.3, D.9).

Locks: a lease, then its agent, then its workloads, then its host. A heartbeat of an agent that is
up writes one row.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

import structlog
from django.conf import settings
from django.db import transaction
from django.db.models.functions import Now

from core.prepared import fetch_prepared
from hosts.agents.errors import AgentConflict, NoAgent
from hosts.agents.hooks import tell_workloads_changed
from hosts.agents.models import HostAgent, HostLease
from hosts.agents.server_keys import TOLD, told_keys, told_of
from hosts.agents.workload_models import Workload
from hosts.domain.liveness import (
    AgentLease,
    Beat,
    Liveness,
    Periods,
    RunSupersededError,
    after_beat,
    is_believable,
)
from hosts.domain.readiness import Readiness, host_readiness
from hosts.models import Host
from journal.actors import Actor
from journal.clock import database_now
from journal.errors import InvalidInput
from journal.services import Change, record_changes
from journal.statements import execute, fetch_row, fetch_rows

log = structlog.get_logger(__name__)

# How the agent's host stands, and what the agent is told to do.
_STANDING: Final = """
SELECT json_build_array(agent.commands, agent.wanted_version, host.id IS NOT NULL, host.state,
                        host.status, host.maintenance, host.slots_held_off, host.conditions,
                        host.condition_reasons)
  FROM hosts_hostagent AS agent
  LEFT JOIN hosts_host AS host ON host.name = agent.host_name
 WHERE agent.id = %(agent)s
"""
# The usual heartbeat: what :func:`hosts.domain.liveness.may_renew` allows, of one that is up.
_RENEW: Final = f"""
UPDATE hosts_hostlease
   SET run_id = %(run_id)s, boot_id = %(boot_id)s, renewed_at = clock_timestamp(),
       expires_at = clock_timestamp() + %(lease)s::interval, uptime_seconds = %(uptime_seconds)s,
       outbox_depth = %(outbox_depth)s
 WHERE agent_id = %(agent)s AND liveness = 'up'
   AND (run_id IN ('', %(run_id)s) OR expires_at <= clock_timestamp()
        OR (boot_id = %(boot_id)s AND boot_id <> '') OR %(takes_over)s)
RETURNING clock_timestamp(), ({TOLD}), ({_STANDING})
"""  # noqa: S608 - our own text
_SUSPECT: Final = """
UPDATE hosts_hostlease AS lease
   SET liveness = 'suspect', liveness_since = statement_timestamp()
  FROM hosts_hostagent AS agent
 WHERE agent.id = lease.agent_id AND lease.agent_id = ANY (ARRAY(
       SELECT agent_id FROM hosts_hostlease
        WHERE liveness = 'up' AND expires_at <= statement_timestamp()
        ORDER BY agent_id FOR UPDATE SKIP LOCKED))
RETURNING agent.host_name
"""
_SILENT: Final = """
    liveness = 'suspect' AND expires_at + %(down_after)s <= statement_timestamp()
    AND liveness_since + %(lease)s <= statement_timestamp()
"""
# Agents whose keys were all revoked are expected to be silent.
_COUNT: Final = f"""
SELECT count(*) FILTER (WHERE {_SILENT}), count(*) FROM hosts_hostlease AS lease
 WHERE liveness IN ('up', 'suspect')
   AND EXISTS (SELECT FROM hosts_hostkey AS key
                WHERE key.agent_id = lease.agent_id AND key.state = 'active')
"""  # noqa: S608 - our own text
_DOWN: Final = f"""
WITH gone AS (
    UPDATE hosts_hostlease SET liveness = 'down', liveness_since = statement_timestamp()
     WHERE agent_id = ANY (ARRAY(
           SELECT agent_id FROM hosts_hostlease WHERE {_SILENT}
            ORDER BY agent_id FOR UPDATE SKIP LOCKED))
    RETURNING agent_id
)
UPDATE hosts_hostagent AS agent SET fence_epoch = agent.fence_epoch + 1
  FROM gone WHERE agent.id = gone.agent_id
RETURNING agent.host_name, agent.fence_epoch, agent.id
"""  # noqa: S608 - our own text
_SILENT_NOW: Final = """
SELECT count(*) FILTER (WHERE liveness IN ('suspect', 'down')), count(*)
  FROM hosts_hostlease WHERE liveness <> 'enrolled'
"""
_HOLD_OFF: Final = """
WITH said AS (
    SELECT agent.host_name, agent.decommissioned_at IS NULL AND agent.mode <> 'none' AS counts,
           CASE WHEN lease.liveness IN ('suspect', 'down') AND %(silence)s
                THEN 'its agent is ' || lease.liveness
                ELSE agent.health_problem END AS reason
      FROM hosts_hostagent AS agent JOIN hosts_hostlease AS lease ON lease.agent_id = agent.id
), differing AS (
    SELECT host.id, CASE WHEN said.counts THEN said.reason ELSE '' END AS reason
      FROM hosts_host AS host LEFT JOIN said ON said.host_name = host.name
     WHERE host.slots_held_off
           IS DISTINCT FROM coalesce(CASE WHEN said.counts THEN said.reason ELSE '' END, '')
     ORDER BY host.name FOR NO KEY UPDATE OF host SKIP LOCKED
)
UPDATE hosts_host AS host SET slots_held_off = coalesce(differing.reason, '')
  FROM differing WHERE host.id = differing.id
"""
_LOSE: Final = """
UPDATE hosts_workload SET state = 'lost', state_since = statement_timestamp()
 WHERE id = ANY (ARRAY(
       SELECT id FROM hosts_workload
        WHERE agent_id = ANY (%(agents)s) AND state IN ('pending', 'dispatched')
        ORDER BY id FOR NO KEY UPDATE))
RETURNING id
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    """What an agent says of itself; ``version`` is None of one that does not say it."""

    beat: Beat
    uptime_seconds: int = 0
    outbox_depth: int = 0
    version: str | None = None
    abilities: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Renewed:
    """What the server says to a heartbeat.

    Attributes:
        server_keys: As :func:`hosts.agents.server_keys.told_keys` tells them.
        readiness: Whether the host takes new VMs and slots.
        commands: ``id`` and ``command`` of each that waits.
        wanted_version: Which version is to run there; empty for any.
    """

    liveness: Liveness
    server_time: datetime
    server_keys: list[dict[str, str]]
    readiness: Readiness
    commands: list[dict[str, str]]
    wanted_version: str = ""


def periods() -> Periods:
    """Return how long silence is borne, as it is set."""
    chosen = settings.HEADROOM.agents
    return Periods(
        lease=timedelta(seconds=chosen.lease_seconds),
        down_after=timedelta(seconds=chosen.down_after_seconds),
    )


def renew(agent: HostAgent, heard: Heartbeat, *, request_id: str) -> Renewed:
    """Renew an agent's lease; return its liveness, with what else the answer tells.

    Args:
        agent: As it was when its signature was checked.

    Raises:
        AgentConflict: Another run holds the lease, or the epoch ended since.
    """
    facts = {
        "agent": agent.pk,
        "run_id": heard.beat.run_id,
        "boot_id": heard.beat.boot_id,
        "takes_over": heard.beat.takes_over,
        "lease": periods().lease,
        "uptime_seconds": heard.uptime_seconds,
        "outbox_depth": heard.outbox_depth,
    }
    renewed = fetch_prepared(_RENEW, facts)
    if renewed:
        now, told, standing = renewed[0]
        liveness = Liveness.UP
    else:
        with transaction.atomic():
            liveness = _renew_locked(agent, heard, request_id)
        now, told = database_now(), None
        (standing,) = fetch_row(_STANDING, {"agent": agent.pk})
    commands, wanted_version, *host = standing
    _keep_version(agent, heard, request_id)
    return Renewed(
        liveness=liveness,
        server_time=now,
        server_keys=told_of(told) or told_keys(now),
        readiness=_readiness(*host),
        commands=commands,
        wanted_version=wanted_version,
    )


def _keep_version(agent: HostAgent, heard: Heartbeat, request_id: str) -> None:
    """Keep which version runs and what it can, when that changed; one that is older says neither.

    Args:
        agent: As it was when its signature was checked.
    """
    version = agent.agent_version if heard.version is None else heard.version
    before, after = (agent.agent_version, agent.abilities), (version, list(heard.abilities))
    if before == after:
        return
    rows = HostAgent.objects.filter(pk=agent.pk)
    with transaction.atomic():
        rows.update(agent_version=version, abilities=after[1])
        if version == agent.agent_version:
            return
        change = Change(
            action="host_agent_version",
            object_type="host",
            object_id=agent.host_name,
            before={"version": before[0], "can": before[1]},
            after={"version": version, "can": after[1]},
        )
        actor = Actor(name=f"host:{agent.host_name}")
        record_changes([change], actor=actor, request_id=request_id)


def _readiness(  # noqa: PLR0917 - columns of one row
    is_known: bool,  # noqa: FBT001 - likewise
    state: str,
    status: str,
    maintenance: str,
    held_off: str,
    conditions: dict[str, object],
    reasons: dict[str, dict[str, str]],
) -> Readiness:
    if not is_known:
        return Readiness(is_ready=False, reason="Unknown", message="no list has the host")
    return host_readiness(
        conditions,
        state=state,
        status=status,
        maintenance=maintenance,
        held_off=held_off,
        reasons=reasons,
    )


def _renew_locked(agent: HostAgent, heard: Heartbeat, request_id: str) -> Liveness:
    row = HostLease.objects.select_for_update().get(agent=agent)
    now_known = HostAgent.objects.select_for_update(no_key=True).get(pk=agent.pk)
    if now_known.fence_epoch != agent.fence_epoch:
        raise stale_epoch(now_known.fence_epoch, agent.fence_epoch)
    before = AgentLease(
        liveness=Liveness(row.liveness),
        since=row.liveness_since,
        run_id=row.run_id,
        boot_id=row.boot_id,
        renewed_at=row.renewed_at,
        expires_at=row.expires_at,
    )
    try:
        after = after_beat(
            before,
            heard.beat,
            now=database_now(),
            has_reported=now_known.reported_at is not None,
            periods=periods(),
        )
    except RunSupersededError:
        raise AgentConflict(
            "another run of this agent holds the lease",
            code="run_superseded",
            expires_at=row.expires_at and row.expires_at.isoformat(),
        ) from None
    row.liveness, row.liveness_since = after.liveness.value, after.since
    row.run_id, row.boot_id = after.run_id, after.boot_id
    row.renewed_at, row.expires_at = after.renewed_at, after.expires_at
    row.uptime_seconds, row.outbox_depth = heard.uptime_seconds, heard.outbox_depth
    row.save()
    if after.liveness != before.liveness:
        _end_fence(now_known.host_name)
        change = _change(now_known.host_name, before.liveness, after.liveness, "a heartbeat")
        actor = Actor(name=f"host:{now_known.host_name}")
        record_changes([change], actor=actor, request_id=request_id)
    return after.liveness


def sweep(*, actor: Actor, request_id: str) -> dict[str, int]:
    """Make silent agents suspect, and suspect ones down; return how many became what."""
    chosen = periods()
    limits = {"lease": chosen.lease, "down_after": chosen.down_after}
    with transaction.atomic():
        suspect = [name for (name,) in fetch_rows(_SUSPECT)]
        silent, known = fetch_row(_COUNT, limits)
        share = settings.HEADROOM.agents.believed_share
        is_believed = is_believable(silent=silent, known=known, share=share)
        down = fetch_rows(_DOWN, limits) if is_believed else []
        _lose([agent_id for _, _, agent_id in down])
        _record(suspect, down, actor=actor, request_id=request_id)
    hold_slots_off(is_silence_believed=_is_silence_believed())
    if not is_believed:
        counts = {"silent": silent, "known": known}
        log.warning("silence_of_agents_not_believed", counts=counts)
    return {"suspect": len(suspect), "down": len(down)}


def hold_slots_off(*, is_silence_believed: bool) -> int:
    """Have hosts get no new slots whose agents are silent or unwell; return how many changed.

    VMs go on there: silence proves nothing, but who sells need not bet on it. Writes what differs.
    """
    return execute(_HOLD_OFF, {"silence": is_silence_believed})


def _is_silence_believed() -> bool:
    silent, known = fetch_row(_SILENT_NOW)
    share = settings.HEADROOM.agents.believed_share
    return is_believable(silent=silent, known=known, share=share)


def fence(host_name: str, *, actor: Actor, request_id: str, reason: str) -> int:
    """End an agent's epoch at once, whether it is heard or not; return the new epoch.

    It is heard again when it dropped what the old epoch told it. Until then its host is lost: who
    fences says that nothing runs there any more, which silence alone does not.

    Raises:
        InvalidInput: There is no reason.
        NoAgent: No agent has the name.
    """
    if not reason.strip():
        raise InvalidInput("a reason is needed", field="reason")
    with transaction.atomic():
        row = (
            HostLease.objects.select_for_update(of=("self",))
            .filter(agent__host_name=host_name)
            .first()
        )
        if row is None:
            raise NoAgent(host_name)
        agent = HostAgent.objects.select_for_update(no_key=True).get(pk=row.agent_id)
        before = Liveness(row.liveness)
        row.liveness, row.liveness_since = Liveness.DOWN.value, database_now()
        row.save(update_fields=["liveness", "liveness_since"])
        agent.fence_epoch += 1
        agent.save(update_fields=["fence_epoch"])
        _lose([agent.pk])
        Host.objects.filter(name=host_name).update(fenced_since=Now())
        change = _change(host_name, before, Liveness.DOWN, reason, epoch=agent.fence_epoch)
        record_changes([change], actor=actor, request_id=request_id)
    return agent.fence_epoch


def forget_lease(agent_pk: int) -> None:
    """Have an agent be one that was never heard; called before its row is locked."""
    row = HostLease.objects.select_for_update().filter(agent_id=agent_pk).first()
    if row is not None:
        fresh = HostLease(agent_id=agent_pk, liveness_since=database_now())
        fresh.save(force_update=True)
        _end_fence(row.agent.host_name)


def _end_fence(host_name: str) -> None:
    Host.objects.filter(name=host_name, fenced_since__isnull=False).update(fenced_since=None)


def _lose(agent_ids: list[int]) -> None:
    """Believe nothing more of what hosts were asked and did not answer; what was made stays."""
    if not agent_ids:
        return
    lost = [pk for (pk,) in fetch_rows(_LOSE, {"agents": agent_ids})]
    if lost:
        tell_workloads_changed(Workload.objects.filter(pk__in=lost))


def stale_epoch(current: int, sent: int) -> AgentConflict:
    """Return the refusal of a request of an epoch that ended."""
    return AgentConflict(
        f"the epoch of the host is {current}, the request has {sent}",
        code="stale_epoch",
        fence_epoch=current,
    )


def _record(
    suspect: Iterable[str], down: Iterable[tuple[str, int, int]], *, actor: Actor, request_id: str
) -> None:
    changes = [_change(name, Liveness.UP, Liveness.SUSPECT, "silence") for name in suspect]
    changes += [
        _change(name, Liveness.SUSPECT, Liveness.DOWN, "silence", epoch=epoch)
        for name, epoch, _ in down
    ]
    record_changes(changes, actor=actor, request_id=request_id)


def _change(
    host_name: str, before: Liveness, after: Liveness, reason: str, *, epoch: int | None = None
) -> Change:
    return Change(
        action=f"host_agent_{after.value}",
        object_type="host",
        object_id=host_name,
        before={"agent": before.value},
        after={"agent": after.value} | ({} if epoch is None else {"fence_epoch": epoch}),
        reason=reason,
    )
