"""Slots as workloads of the agents of their hosts: what should be, compared with what is asked.

Runs without input: twice, late or beside itself it is harmless, since what is compared and what is
written of an agent happens under its row's lock. Locks: one agent a transaction, then its
workloads; no zone, no slot. A slot that changes meanwhile is found by the next look.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, NamedTuple
from uuid import UUID

import structlog
from django.conf import settings
from django.db import DatabaseError, transaction
from django.db.models import Q

from capacity.models import Reservation, ReservationKind
from hosts.agents.workload_models import Workload
from hosts.agents.workloads import (
    Asked,
    change_workloads,
    create_workloads,
    delete_workloads,
    lock_agent,
    retry_workloads,
)
from hosts.domain.workloads import MOST_ATTEMPTS, WorkloadState
from journal.actors import Actor
from journal.statements import fetch_rows

log = structlog.get_logger(__name__)

SLOT: Final = "slot"
#: What an agent says that keeps what is there when it cannot make another size of it.
CHANGES_SIZE: Final = "resize"
#: A workload that failed is tried again after so long, twice and thrice as long later.
RETRY_AFTER: Final = timedelta(seconds=60)
# A slot that is a part of its flavor needs that part of the rest, rounded up, as the ledger has it.
_WANTED: Final = """
WITH needs AS MATERIALIZED (
    SELECT flavor.name, flavor.memory_bytes, need.network, need.disk_io, need.gpu
      FROM hosts_flavor AS flavor CROSS JOIN capacity_flavor_needs(flavor.extra_specs) AS need
     WHERE flavor.memory_bytes > 0 AND need.network + need.disk_io + need.gpu > 0)
SELECT agent.id AS agent_id, slot.id AS slot_id, slot.uuid, slot.project_id, slot.vcpus,
       slot.memory_bytes,
       coalesce(ceil(needs.network::numeric * slot.memory_bytes / needs.memory_bytes), 0)::bigint
           AS network_bps,
       coalesce(ceil(needs.disk_io::numeric * slot.memory_bytes / needs.memory_bytes), 0)::bigint
           AS disk_io_bps,
       coalesce(ceil(needs.gpu::numeric * slot.memory_bytes / needs.memory_bytes), 0)::bigint
           AS gpus,
       slot.blocked_vcpus, slot.blocked_memory_bytes, slot.held_network_bps, slot.held_disk_io_bps,
       slot.held_gpus
  FROM hosts_hostagent AS agent
  JOIN hosts_host AS host ON host.name = agent.host_name
  JOIN capacity_reservation AS slot ON slot.target_host_id = host.id AND slot.kind = 'committed'
  LEFT JOIN needs ON needs.name = slot.resource_name
 WHERE agent.mode = 'enforce' AND agent.decommissioned_at IS NULL
"""
_IS_DUE: Final = """
made.attempt - made.first_attempt + 1 < %(most)s AND (
    made.state = 'failed' AND made.state_since
        + (made.attempt - made.first_attempt + 1) * %(after)s <= statement_timestamp()
    OR made.state = 'lost' AND EXISTS (SELECT FROM hosts_hostlease AS lease
                                        WHERE lease.agent_id = made.agent_id
                                          AND lease.liveness = 'up'))
"""
_DIFFERING: Final = f"""
WITH wanted AS ({_WANTED}), made AS (
    SELECT agent_id, owner_id, cpus, memory_bytes, network_bps, disk_io_bps, gpus, type
      FROM hosts_workload
     WHERE owner_kind = 'slot' AND NOT to_delete)
SELECT coalesce(wanted.agent_id, made.agent_id)
  FROM wanted
  FULL JOIN made ON made.agent_id = wanted.agent_id AND made.owner_id = wanted.slot_id::text
        AND (made.cpus, made.memory_bytes, made.network_bps, made.disk_io_bps, made.gpus)
          = (wanted.vcpus, wanted.memory_bytes, wanted.network_bps, wanted.disk_io_bps, wanted.gpus)
        AND made.type = %(type)s
 WHERE wanted.agent_id IS NULL OR made.agent_id IS NULL
 UNION
SELECT made.agent_id FROM hosts_workload AS made
 WHERE made.owner_kind = 'slot' AND made.state IN ('failed', 'lost') AND {_IS_DUE}
 ORDER BY 1
"""  # noqa: S608 - our own text
_DUE: Final = f"""
SELECT made.id FROM hosts_workload AS made
 WHERE made.agent_id = %(agent)s AND made.owner_kind = 'slot' AND made.id = ANY (%(ids)s)
   AND made.state IN ('failed', 'lost') AND {_IS_DUE}
"""  # noqa: S608 - our own text


class Wanted(NamedTuple):
    """A slot that an agent should make; what VMs do not fill of it is blocked and held."""

    agent_id: int
    slot_id: int
    uuid: UUID
    project_id: str
    vcpus: int
    memory_bytes: int
    network_bps: int
    disk_io_bps: int
    gpus: int
    blocked_vcpus: int
    blocked_memory_bytes: int
    held_network_bps: int
    held_disk_io_bps: int
    held_gpus: int

    @property
    def filled(self) -> dict[str, int]:
        """What VMs fill of it, by the names that agents have for resources."""
        parts = {
            "cpu": self.vcpus - self.blocked_vcpus,
            "memory": self.memory_bytes - self.blocked_memory_bytes,
            "network": self.network_bps - self.held_network_bps,
            "disk_io": self.disk_io_bps - self.held_disk_io_bps,
            "gpu": self.gpus - self.held_gpus,
        }
        return {name: part for name, part in parts.items() if part > 0}


@dataclass(slots=True, kw_only=True)
class Followed:
    """What a look did: agents that were asked something, and how much."""

    agents: int = 0
    created: int = 0
    changed: int = 0
    deleted: int = 0
    retried: int = 0
    failed: int = 0


def follow_slots(*, actor: Actor, request_id: str) -> Followed:
    """Ask agents to make the slots of their hosts, and to remove what is no slot of theirs.

    A slot that has another size is changed where it is, with the VMs that fill it. An agent that
    does not say that it can would drop what it cannot make: there it is removed and made anew, and
    while nothing is known, it waits. One that went to another host is removed where it was and
    made where it is. Agents that fail are left for the
    next look.
    """
    done = Followed()
    for (agent_id,) in fetch_rows(_DIFFERING, _parameters()):
        try:
            with transaction.atomic(durable=True):
                _follow(agent_id, done, actor=actor, request_id=request_id)
        except DatabaseError as error:
            done.failed += 1
            log.warning("slots_not_followed", agent=agent_id, error=str(error))
    return done


def _follow(agent_id: int, done: Followed, *, actor: Actor, request_id: str) -> None:
    abilities = lock_agent(agent_id).abilities
    kind = settings.HEADROOM.agents.slot_type
    wanted = {one.slot_id: one for one in _wanted_of(agent_id)}
    asked = Workload.objects.filter(agent_id=agent_id, owner_kind=SLOT, to_delete=False)
    kept: dict[int, int] = {}
    changed: dict[int, Asked] = {}
    gone: list[int] = []
    for row in asked.order_by("pk"):
        slot = wanted.get(int(row.owner_id))
        if slot is None or row.type != kind or slot.slot_id in kept:
            gone.append(row.pk)
            continue
        is_same = _has_size(row, slot)
        if not is_same and abilities is not None and CHANGES_SIZE not in abilities:
            gone.append(row.pk)
            continue
        kept[slot.slot_id] = row.pk
        if not is_same and abilities is not None:
            changed[row.pk] = _asked(slot, kind)
    same = sorted(set(kept.values()) - set(changed))
    due = [pk for (pk,) in fetch_rows(_DUE, _parameters(agent=agent_id, ids=same))]
    missing = [_asked(wanted[slot_id], kind) for slot_id in sorted(set(wanted) - set(kept))]
    if gone:
        done.deleted += delete_workloads(
            agent_id, gone, reason="the slot left the host", actor=actor, request_id=request_id
        )
    if changed:
        done.changed += change_workloads(agent_id, changed, actor=actor, request_id=request_id)
    if due:
        done.retried += retry_workloads(agent_id, due, actor=actor, request_id=request_id)
    if missing:
        made = create_workloads(agent_id, missing, actor=actor, request_id=request_id)
        done.created += len(made)
    done.agents += bool(gone or changed or due or missing)


def _wanted_of(agent_id: int) -> Iterable[Wanted]:
    return (
        Wanted(*row)
        for row in fetch_rows(f"{_WANTED} AND agent.id = %(agent)s", {"agent": agent_id})
    )


def _has_size(row: Workload, slot: Wanted) -> bool:
    has = (row.cpus, row.memory_bytes, row.network_bps, row.disk_io_bps, row.gpus)
    return has == (
        slot.vcpus, slot.memory_bytes, slot.network_bps, slot.disk_io_bps, slot.gpus,
    )  # fmt: skip


def _asked(slot: Wanted, kind: str) -> Asked:
    return Asked(
        owner_kind=SLOT,
        owner_id=str(slot.slot_id),
        number=slot.slot_id,
        type=kind,
        user_id=slot.project_id,
        data=_data(slot, kind),
        cpus=slot.vcpus,
        memory_bytes=slot.memory_bytes,
        network_bps=slot.network_bps,
        disk_io_bps=slot.disk_io_bps,
        gpus=slot.gpus,
    )


def _data(slot: Wanted, kind: str) -> Mapping[str, object]:
    """Return the arguments of the provisioner: memory of huge pages is rounded up to whole ones."""
    match kind:
        case "hugepages":
            return {"page_size": "1GiB", "count": -(-slot.memory_bytes >> 30)}
        case "capacity_slice":
            return {"cpu_weight": 100}
    return {"slot": str(slot.uuid), **({"filled": slot.filled} if slot.filled else {})}


def _parameters(**more: object) -> dict[str, object]:
    return {
        "type": settings.HEADROOM.agents.slot_type,
        "most": MOST_ATTEMPTS,
        "after": RETRY_AFTER,
        **more,
    }


def slots_of_host(host_name: str) -> Mapping[str, int]:
    """Return how many slots are held on a host."""
    here = Q(target_host__name=host_name) | Q(confirmed_host__name=host_name)
    return {"slots": Reservation.objects.filter(here, kind=ReservationKind.COMMITTED).count()}


def slot_states(slot_ids: Iterable[int]) -> Mapping[int, Workload]:
    """Return what agents were asked of slots last, by slot; slots of other hosts are missing."""
    rows = (
        Workload.objects.filter(owner_kind=SLOT, owner_id__in=[str(pk) for pk in slot_ids])
        .exclude(state=WorkloadState.DELETED.value)
        .select_related("agent__lease")
        .defer("agent__report")
        .order_by("to_delete", "-pk")
    )
    found: dict[int, Workload] = {}
    for row in rows:
        found.setdefault(int(row.owner_id), row)
    return found
