"""What agents are asked to make, to try again and to remove (spec hosts, D.7, D.8).

Locks: an agent, then its workloads in order of their keys. Several agents are locked in order of
their keys; who holds zones has locked them before. Numbers of changes are drawn under the agent's
lock, so that a reader never sees one before the numbers below it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from django.db import transaction
from headroom_host_agent.provision.signing.keys import SigningError
from headroom_host_agent.provision.signing.v2 import canonical_json

from hosts.agents.errors import AgentConflict, NoAgent
from hosts.agents.models import AgentMode, HostAgent
from hosts.agents.waking import wake
from hosts.agents.workload_models import Workload
from hosts.domain.workloads import ENDED, MOST_ATTEMPTS, WorkloadState
from journal.actors import Actor
from journal.clock import database_now
from journal.errors import InvalidInput
from journal.services import Change, record_changes
from journal.statements import fetch_value

LONGEST_REASON: Final = 255
LONGEST_GWID: Final = 41
LARGEST: Final = 2**63 - 1
#: What owns a workload of which only its agent knows.
FORGOTTEN: Final = "forgotten"
_AMOUNTS: Final = (
    "cpus", "memory_bytes", "disk_bytes", "network_bps", "disk_io_bps", "gpus",
)  # fmt: skip
_CHANGED: Final = (
    *_AMOUNTS, "data", "is_made", "version", "attempt", "first_attempt", "fence_epoch", "state",
    "state_since", "error", "seq",
)  # fmt: skip
_GWID: Final = re.compile(r"[0-9]{1,18}-[0-9]{1,19}", re.ASCII)
_TYPE: Final = re.compile(r"[a-z][a-z0-9_]{0,63}", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A workload to make.

    Attributes:
        owner_kind: What it is made for, such as ``slot``; with ``owner_id`` how its owner finds it.
        number: Of the slot: the first part of the id that the agent knows.
        user_id: The project that it is for.
        data: Arguments of the provisioner of ``type``; no floats.
        network_bps: Bytes per second, as is ``disk_io_bps``.
    """

    owner_kind: str
    owner_id: str
    number: int
    type: str
    user_id: str = ""
    data: Mapping[str, object] = field(default_factory=dict)
    cpus: int = 0
    memory_bytes: int = 0
    disk_bytes: int = 0
    network_bps: int = 0
    disk_io_bps: int = 0
    gpus: int = 0
    expires_at: datetime | None = None
    reference: str = ""
    tag: Mapping[str, str] = field(default_factory=dict)


class NotEnforcing(AgentConflict):
    """The agent of the host is not asked to make anything."""

    code = "agent_not_enforcing"


class NoReservation(InvalidInput):
    """An operator names a reservation that the host was never asked for."""

    code = "unknown_reservation"
    status = 404


def lock_agent(pk: int) -> HostAgent:
    """Return an agent whose row is locked: no number is drawn and no epoch ends meanwhile."""
    found: HostAgent = HostAgent.objects.select_for_update(no_key=True).defer("report").get(pk=pk)
    return found


def create_workloads(
    agent_pk: int, asked: Sequence[Asked], *, actor: Actor, request_id: str
) -> list[Workload]:
    """Ask an agent to make workloads; return their rows.

    Raises:
        NotEnforcing: The agent is not in mode ``enforce``, or decommissioned.
        InvalidInput: Data have no canonical form, or an amount is out of bounds.
    """
    for one in asked:
        _check(one)
    with transaction.atomic():
        agent = lock_agent(agent_pk)
        if agent.mode != AgentMode.ENFORCE or agent.decommissioned_at is not None:
            raise NotEnforcing(f"the agent of {agent.host_name} is not in mode enforce")
        rows = [_row(agent, one) for one in asked]
        Workload.objects.bulk_create(rows)
        _saved(agent)
        changes = [_change("host_workload_created", row, after=_told(row, agent)) for row in rows]
        record_changes(changes, actor=actor, request_id=request_id)
    return rows


def change_workloads(
    agent_pk: int, asked: Mapping[int, Asked], *, actor: Actor, request_id: str
) -> int:
    """Ask an agent for another size of what it has, or is to have; return how many it may change.

    Each stays the same workload: what is there is changed where it is, with what fills it, and
    stays as it is if the agent cannot.

    Args:
        agent_pk: Whose they are.
        asked: Key of the workload -> what is wanted of it now, of the same owner and type.

    Raises:
        InvalidInput: As for new ones.
    """
    for one in asked.values():
        _check(one)
    with transaction.atomic():
        agent = lock_agent(agent_pk)
        rows = _locked(agent, asked, to_delete=False)
        now = database_now()
        before = {row.pk: {**_sizes(row), "state": row.state} for row in rows}
        for row in rows:
            one = asked[row.pk]
            row.data = dict(one.data)
            for name in _AMOUNTS:
                setattr(row, name, getattr(one, name))
            row.is_made |= row.state == WorkloadState.DEPLOYED
            row.version += 1
            row.attempt += 1
            row.first_attempt = row.attempt
            row.fence_epoch = agent.fence_epoch
            row.state, row.state_since = WorkloadState.PENDING.value, now
            row.error, row.seq = "", _next(agent)
        Workload.objects.bulk_update(rows, _CHANGED)
        _saved(agent)
        changes = [
            _change(
                "host_workload_changed",
                row,
                before=before[row.pk],
                after={**_sizes(row), "state": row.state, "version": row.version, "seq": row.seq},
            )
            for row in rows
        ]
        record_changes(changes, actor=actor, request_id=request_id)
    return len(rows)


def delete_workloads(
    agent_pk: int, pks: Iterable[int], *, reason: str, actor: Actor, request_id: str
) -> int:
    """Ask an agent to remove workloads; return how many it was not asked before.

    They are gone when the agent says so. One that the agent cannot have seen is asked for as well:
    that no poll answered with it is not proof.
    """
    with transaction.atomic():
        agent = lock_agent(agent_pk)
        rows = _locked(agent, pks, to_delete=False)
        now = database_now()
        before = {row.pk: row.state for row in rows}
        for row in rows:
            row.to_delete, row.delete_reason = True, reason[:LONGEST_REASON]
            row.state, row.state_since = WorkloadState.DELETING.value, now
            row.seq = _next(agent)
        Workload.objects.bulk_update(
            rows, ["to_delete", "delete_reason", "state", "state_since", "seq"]
        )
        _saved(agent)
        changes = [
            _change(
                "host_workload_deleting",
                row,
                before={"state": before[row.pk]},
                after={"state": row.state, "seq": row.seq},
                reason=reason,
            )
            for row in rows
        ]
        record_changes(changes, actor=actor, request_id=request_id)
    return len(rows)


def delete_workload(
    host_name: str, gwid: str, *, actor: Actor, request_id: str, reason: str
) -> str:
    """Ask the agent of a host to remove one workload; return its state.

    What it was made for is not ended: a slot that stays on the host is made anew, as another one.

    Raises:
        InvalidInput: There is no reason.
        NoReservation: The host was never asked for it.
    """
    if not reason.strip():
        raise InvalidInput("a reason is needed", field="reason")
    known = Workload.objects.filter(agent__host_name=host_name, gwid=gwid)
    row = known.first() if gwid.isprintable() and len(gwid) <= LONGEST_GWID else None
    missing = NoReservation(f"host {host_name!r} has no reservation {gwid[:64]!r}", field="gwid")
    if row is None:
        raise missing
    delete_workloads(row.agent_id, [row.pk], reason=reason, actor=actor, request_id=request_id)
    state = known.values_list("state", flat=True).first()
    if state is None:
        raise missing  # it was a tombstone, and is forgotten meanwhile
    return state


def delete_forgotten(
    host_name: str, gwid: str, kind: str, *, actor: Actor, request_id: str, reason: str
) -> str:
    """Ask an agent to remove what it has and a restored backup does not know; return its state.

    It is known again as one that goes: the agent's answer ends it, as any other. One that is known
    is removed as it is.

    Args:
        host_name: Whose agent.
        gwid: What the agent calls it.
        kind: Type of its provisioner, as the agent says.

    Raises:
        InvalidInput: There is no reason, or no such id or type is given.
        AgentConflict: Another host has it.
        NoAgent: None of the host enrolled, or it was decommissioned.
    """
    if not reason.strip():
        raise InvalidInput("a reason is needed", field="reason")
    if _GWID.fullmatch(gwid) is None or _TYPE.fullmatch(kind) is None:
        raise InvalidInput("the id must be like 42-1, the type like accounting", field="gwid")
    agents = HostAgent.objects.filter(host_name=host_name, decommissioned_at__isnull=True)
    agent_pk = agents.values_list("pk", flat=True).first() if host_name.isprintable() else None
    if agent_pk is None:
        raise NoAgent(host_name)
    with transaction.atomic():
        agent = lock_agent(agent_pk)
        if not Workload.objects.filter(gwid=gwid).exists():
            number = int(gwid.split("-", maxsplit=1)[0])
            asked = Asked(owner_kind=FORGOTTEN, owner_id=gwid, number=number, type=kind)
            row = _row(agent, asked)
            row.gwid = gwid
            row.save(force_insert=True)
            agent.save(update_fields=["change_seq"])
        elif not agent.workloads.filter(gwid=gwid).exists():
            raise AgentConflict(f"another host has reservation {gwid}", code="agent_in_use")
        return delete_workload(host_name, gwid, actor=actor, request_id=request_id, reason=reason)


def retry_workloads(agent_pk: int, pks: Iterable[int], *, actor: Actor, request_id: str) -> int:
    """Ask an agent to try failed and lost workloads again; return how many it may.

    One whose version was tried ``MOST_ATTEMPTS`` times stays as it is: its owner finds another
    host.
    """
    with transaction.atomic():
        agent = lock_agent(agent_pk)
        found = _locked(agent, pks, state__in=[one.value for one in ENDED])
        rows = [row for row in found if row.tries < MOST_ATTEMPTS]
        now = database_now()
        before = {row.pk: row.state for row in rows}
        for row in rows:
            row.attempt += 1
            row.fence_epoch = agent.fence_epoch
            row.state, row.state_since = WorkloadState.PENDING.value, now
            row.error, row.seq = "", _next(agent)
        Workload.objects.bulk_update(
            rows, ["attempt", "fence_epoch", "state", "state_since", "error", "seq"]
        )
        _saved(agent)
        changes = [
            _change(
                "host_workload_retried",
                row,
                before={"state": before[row.pk]},
                after={"state": row.state, "attempt": row.attempt, "seq": row.seq},
            )
            for row in rows
        ]
        record_changes(changes, actor=actor, request_id=request_id)
    return len(rows)


def _check(one: Asked) -> None:
    amounts = (one.number, *(getattr(one, name) for name in _AMOUNTS))
    if not all(0 <= amount <= LARGEST for amount in amounts):
        raise InvalidInput("amounts of a workload must be from 0, of 63 bits", field="resources")
    try:
        canonical_json(dict(one.data))
    except SigningError as error:
        raise InvalidInput(f"the data of a workload: {error}", field="data") from None


def _row(agent: HostAgent, one: Asked) -> Workload:
    # The second part of the id is the row's key: no id ever names two workloads.
    pk = fetch_value("SELECT nextval(pg_get_serial_sequence('hosts_workload', 'id'))")
    return Workload(
        pk=pk,
        agent=agent,
        gwid=f"{one.number}-{pk}",
        owner_kind=one.owner_kind,
        owner_id=one.owner_id,
        user_id=one.user_id,
        type=one.type,
        data=dict(one.data),
        cpus=one.cpus,
        memory_bytes=one.memory_bytes,
        disk_bytes=one.disk_bytes,
        network_bps=one.network_bps,
        disk_io_bps=one.disk_io_bps,
        gpus=one.gpus,
        expires_at=one.expires_at,
        reference=one.reference,
        tag=dict(one.tag),
        seq=_next(agent),
        fence_epoch=agent.fence_epoch,
    )


def _next(agent: HostAgent) -> int:
    agent.change_seq += 1
    return agent.change_seq


def _saved(agent: HostAgent) -> None:
    agent.save(update_fields=["change_seq"])
    wake([agent.uuid])


def _locked(agent: HostAgent, pks: Iterable[int], **which: object) -> list[Workload]:
    rows = Workload.objects.select_for_update(no_key=True, of=("self",)).order_by("pk")
    return list(rows.filter(agent=agent, pk__in=sorted(pks), **which))


def _told(row: Workload, agent: HostAgent) -> dict[str, object]:
    return {
        "host": agent.host_name,
        "type": row.type,
        "owner": f"{row.owner_kind} {row.owner_id}",
        **_sizes(row),
        "seq": row.seq,
    }


def _sizes(row: Workload) -> dict[str, object]:
    """Return what a workload takes of memory and CPUs, and of the rest what is not nothing."""
    amounts = {name: getattr(row, name) for name in _AMOUNTS}
    usual = ("cpus", "memory_bytes")
    return {name: amount for name, amount in amounts.items() if amount or name in usual}


def _change(
    action: str,
    row: Workload,
    *,
    before: Mapping[str, object] | None = None,
    after: Mapping[str, object] | None = None,
    reason: str = "",
) -> Change:
    return Change(
        action=action,
        object_type="host_workload",
        object_id=row.gwid,
        before=before,
        after=after,
        reason=reason,
    )
