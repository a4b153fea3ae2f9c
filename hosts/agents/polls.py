"""What an agent is asked to do, page by page, signed (spec hosts, D.5, D.7)."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from django.conf import settings
from django.db.models import Manager, QuerySet
from django.db.models.functions import Now
from headroom_host_agent.provision.signing.v2 import reservation_bytes
from headroom_host_agent.provision.wire import format_time

from core.prepared import fetch_prepared
from hosts.agents.errors import AgentRefused, UnknownToAgent
from hosts.agents.models import HostAgent
from hosts.agents.server_keys import Signer, signer
from hosts.agents.workload_models import Workload
from hosts.domain.workloads import UNLISTED, WorkloadState

LARGEST_PAGE: Final = 200
_MICROSECOND: Final = timedelta(microseconds=1)
_UNLISTED: Final = sorted(state.value for state in UNLISTED)
# One statement, so one snapshot: all numbers up to the one it reads are visible to it.
_PAGE: Final = """
SELECT workload.*, agent.change_seq AS now_seq, agent.fence_epoch AS now_epoch,
       agent.timeline AS now_timeline, agent.uuid AS host_id
  FROM hosts_hostagent AS agent
  LEFT JOIN LATERAL (
       SELECT * FROM hosts_workload
        WHERE agent_id = agent.id AND seq > %(after)s
          AND (%(after)s > 0 OR state <> ALL (%(unlisted)s))
        ORDER BY seq LIMIT %(limit)s) AS workload ON true
 WHERE agent.id = %(agent)s
 ORDER BY workload.seq
"""
# Those for whom it would find nothing.
_EMPTY: Final = """
SELECT asked.agent_id, asked.after, agent.change_seq, agent.fence_epoch, agent.timeline
  FROM unnest(%(agents)s::bigint[], %(after)s::bigint[]) AS asked (agent_id, after)
  JOIN hosts_hostagent AS agent ON agent.id = asked.agent_id
 WHERE asked.after <= agent.change_seq
   AND NOT EXISTS (
       SELECT FROM hosts_workload
        WHERE agent_id = asked.agent_id AND seq > asked.after
          AND (asked.after > 0 OR state <> ALL (%(unlisted)s)))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class PollQuery:
    """What a poll asks.

    Attributes:
        after: Highest number that the agent has stored; 0 to begin anew.
        wait_seconds: How long an empty answer may be held.
    """

    after: int = 0
    limit: int = LARGEST_PAGE
    wait_seconds: float = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ReservationPage:
    """An answer to a poll.

    Attributes:
        reservations: Signed documents by their numbers.
        last_id: What the next poll asks from.
        caught_up: Whether there was no more.
        timeline: When it changed, numbers may have been taken back.
        deployed: Ids of those that the agent said to have made, also in another size; it may have
            lost its own record.
    """

    reservations: tuple[Mapping[str, object], ...]
    last_id: int
    caught_up: bool
    fence_epoch: int
    timeline: str
    deployed: tuple[str, ...] = ()

    def document(self) -> dict[str, object]:
        """Return what is answered; ``X-Last-Id`` has ``last_id`` as well."""
        return {
            "reservations": list(self.reservations),
            "last_id": self.last_id,
            "caught_up": self.caught_up,
            "fence_epoch": self.fence_epoch,
            "timeline": self.timeline,
            "deployed": list(self.deployed),
        }


def poll_query(parameters: Mapping[str, str]) -> PollQuery:
    """Return what a poll asks: ``from``, ``limit`` and ``wait``, each at most as much as we give.

    Raises:
        AgentRefused: One is no number, ``from`` is beyond 63 bits, or ``limit`` is 0.
    """
    after = _number(parameters, "from", 0)
    limit = _number(parameters, "limit", LARGEST_PAGE)
    wait = _number(parameters, "wait", 0)
    if limit == 0:
        raise _wrong("limit")
    most = settings.HEADROOM.agents.poll_wait_seconds
    return PollQuery(after=after, limit=min(limit, LARGEST_PAGE), wait_seconds=min(wait, most))


def read_page(agent_pk: int, query: PollQuery) -> ReservationPage:
    """Return what an agent is asked to do after a number; it counts as dispatched then.

    One statement reads it; another writes when something in it is pending. It waits for nothing.

    Raises:
        AgentRefused: The number is beyond all that were drawn: the agent begins at 0.
    """
    parameters = {
        "agent": agent_pk,
        "after": query.after,
        "limit": query.limit + 1,
        "unlisted": _UNLISTED,
    }
    found: list[Any] = list(Workload.objects.raw(_PAGE, parameters))  # Any: columns of the agent
    drawn = found[0].now_seq
    if query.after > drawn:
        raise AgentRefused(
            f"the number {query.after} is beyond {drawn}, the last of the host",
            code="bad_cursor",
            field="from",
            change_seq=drawn,
        )
    rows = [row for row in found if row.pk is not None]
    listed = rows[: query.limit]
    caught_up = len(rows) <= query.limit
    _dispatch(listed)
    return ReservationPage(
        reservations=tuple(_signed(listed, str(found[0].host_id), found[0].now_epoch)),
        last_id=drawn if caught_up else listed[-1].seq,
        caught_up=caught_up,
        fence_epoch=found[0].now_epoch,
        timeline=str(found[0].now_timeline),
        deployed=tuple(
            row.gwid
            for row in listed
            if row.state == WorkloadState.DEPLOYED or (row.is_made and not row.to_delete)
        ),
    )


def empty_pages(asked: Collection[tuple[int, int]]) -> dict[tuple[int, int], ReservationPage]:
    """Return the pages of those who are asked to do nothing, by agent and number asked from."""
    facts = {
        "agents": [agent for agent, _ in asked],
        "after": [after for _, after in asked],
        "unlisted": _UNLISTED,
    }
    return {
        (agent, after): ReservationPage(
            reservations=(),
            last_id=drawn,
            caught_up=True,
            fence_epoch=epoch,
            timeline=str(timeline),
        )
        for agent, after, drawn, epoch, timeline in fetch_prepared(_EMPTY, facts)
    }


def read_one(agent: HostAgent, gwid: str) -> tuple[Mapping[str, object], bool]:
    """Return a signed reservation of an agent, and whether it is gone.

    Raises:
        UnknownToAgent: The agent was never asked for one of this name.
    """
    row = workload_of(agent, gwid)
    (document,) = _signed([row], str(agent.uuid), agent.fence_epoch)
    return document, row.state == WorkloadState.DELETED


def workload_of(
    agent: HostAgent, gwid: str, rows: QuerySet[Workload] | Manager[Workload] = Workload.objects
) -> Workload:
    """Return a workload of an agent, found in ``rows``.

    Raises:
        UnknownToAgent: The agent was never asked for one of this name.
    """
    is_name = re.fullmatch(r"[0-9]{1,20}-[0-9]{1,20}", gwid) is not None
    row = rows.filter(agent=agent, gwid=gwid).first() if is_name else None
    if row is None:
        raise UnknownToAgent("the host has no such reservation", code="no_such_reservation")
    return row


def document_of(row: Workload, host_id: str, fence_epoch: int) -> dict[str, object]:
    """Return what is signed of a workload."""
    resources = {
        "cpu": row.cpus,
        "memory": row.memory_bytes,
        "disk": row.disk_bytes,
        "network": row.network_bps,
        "disk_io": row.disk_io_bps,
        "gpu": row.gpus,
    }
    lasts = None if row.expires_at is None else (row.expires_at - row.created_at) // _MICROSECOND
    return {
        "id": row.gwid,
        "host_id": host_id,
        "user_id": row.user_id,
        "type": row.type,
        "data": row.data,
        "resources": {name: amount for name, amount in resources.items() if amount},
        "created_at": format_time(row.created_at),
        "duration_ns": 0 if lasts is None else max(1, lasts * 1000),
        "reference": row.reference,
        "to_delete": row.to_delete,
        "version": row.version,
        "attempt": row.attempt,
        "seq": row.seq,
        "fence_epoch": fence_epoch,
    }


def _signed(
    rows: Sequence[Workload], host_id: str, fence_epoch: int
) -> Iterator[Mapping[str, object]]:
    ours: Signer | None = signer() if rows else None
    for row in rows:
        assert ours is not None  # noqa: S101 - there are rows
        document = document_of(row, host_id, fence_epoch)
        yield ours.sealed(document, reservation_bytes(document))


def _dispatch(rows: Sequence[Workload]) -> None:
    """Note that an agent was told; a change meanwhile has another number."""
    waiting = [row.seq for row in rows if row.state == WorkloadState.PENDING]
    if waiting:
        Workload.objects.filter(
            agent_id=rows[0].agent_id, seq__in=waiting, state=WorkloadState.PENDING.value
        ).update(state=WorkloadState.DISPATCHED.value, state_since=Now())


def _number(parameters: Mapping[str, str], name: str, default: int) -> int:
    text = parameters.get(name, "")
    if not text:
        return default
    if re.fullmatch(r"[0-9]{1,19}", text, re.ASCII) is None or int(text) >= 2**63:
        raise _wrong(name)
    return int(text)


def _wrong(name: str) -> AgentRefused:
    return AgentRefused(f"{name} must be a number", code="invalid_poll", field=name)
