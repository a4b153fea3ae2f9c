"""Claims settled in the ledger with the write that makes them (ADR 0014, 0029).

Where ``HEADROOM_ALLOCATION_SOURCE`` is ``placement`` a write of allocations, the rooms of the hosts
it touches, and the slots and in-flight rows of its VMs commit together. Lock order: rooms come
after providers here, and nothing that holds a room locks a provider.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

import structlog

from capacity.hooks import hooks
from capacity.ledger.claims import Eaten, still_eaten
from core.conf import headroom
from core.prepared import run
from placement.domain.errors import Conflict
from placement.selectors.allocated import HOST_ROOT, NAME
from scheduling.resources import MIB

log = structlog.get_logger(__name__)

SETTLE: Final = "SELECT * FROM placement_settle_claims(%(consumers)s::text[])"
ON_HOSTS: Final = """
SELECT host, sum(memory_bytes)::bigint, sum(vcpus)::bigint
  FROM placement_claimed(%(consumers)s::text[]) GROUP BY host
"""
HELD_ON: Final = f"""
SELECT root.uuid::text, host.name, room.committed_memory_bytes, room.failover_memory_bytes,
       room.in_flight_memory_bytes, room.committed_vcpus, room.failover_vcpus, room.in_flight_vcpus
  FROM hosts_host AS host
  JOIN placement_provider AS root ON {HOST_ROOT}
  JOIN capacity_hostcapacity AS room ON room.host_id = host.id
 WHERE host.id = %(host_id)s
"""  # noqa: S608 - constants only
CLASS_OF: Final = {"memory_bytes": "MEMORY_MB", "vcpus": "VCPU"}

Amounts = Mapping[int, tuple[int, int]]


def rooms_follow_allocations() -> bool:
    """Return whether allocations say what VMs take on hosts."""
    return bool(headroom().allocation_source == NAME)


def held_on_hosts(consumers: Collection[str]) -> Amounts:
    """Return the bytes and vCPUs that consumers hold together, by key of the host."""
    rows = run(ON_HOSTS, {"consumers": sorted(consumers)}).fetchall()
    return {host_id: (memory_bytes, vcpus) for host_id, memory_bytes, vcpus in rows}


def settle_claims(consumers: Collection[str], *, held_before: Amounts | None = None) -> list[Eaten]:
    """Settle a write of this transaction in the ledger and count the rooms of its hosts.

    Args:
        consumers: Canonical UUIDs of all that were written.
        held_before: What they held on hosts before the write; hosts on which they hold no more of
            a resource now take none from others. Left out, they held nothing.

    Returns:
        Where the write took room that is held for others; the caller must roll back then.
    """
    chosen = sorted(consumers)
    eaten = []
    used = []
    for *facts, failover_id in run(SETTLE, {"consumers": chosen}).fetchall():
        if failover_id is None:
            eaten.append(Eaten(*facts))
        else:
            used.append(failover_id)
    if used:
        hooks.evacuation_guide.arrived(used)
        eaten = still_eaten(eaten)
    if not headroom().placement.enforce_held:
        return []
    if not eaten or held_before is None:
        return eaten
    held_now = held_on_hosts(chosen)
    position = {resource: place for place, resource in enumerate(CLASS_OF)}
    none = (0, 0)
    return [
        one
        for one in eaten
        if held_now.get(one.host_id, none)[position[one.resource]]
        > held_before.get(one.host_id, none)[position[one.resource]]
    ]


def held_for_others(eaten: Eaten) -> Conflict:
    """Return the refusal of a claim, worded so that Nova goes to its next host; and log it.

    What is told to be held is what is held without the claim.
    """
    ((provider, host, *held),) = run(HELD_ON, {"host_id": eaten.host_id}).fetchall()
    in_memory = eaten.resource == "memory_bytes"
    unit = MIB if in_memory else 1
    committed, failover, in_flight = (
        amount // unit for amount in (held[:3] if in_memory else held[3:])
    )
    name = CLASS_OF[eaten.resource]
    log.info(
        "claim_of_held_room",
        host=host,
        facts={
            "resource_class": name,
            "taken": eaten.taken // unit,
            "effective": eaten.effective // unit,
            "committed": committed,
            "failover": failover,
            "in_flight": in_flight,
        },
    )
    return Conflict(
        f"Unable to allocate inventory: Unable to create allocation for '{name}' on resource "
        f"provider '{provider}'. The requested amount would take room that is held for others: "
        f"{eaten.taken // unit} would be taken or held of {eaten.effective // unit}; commitments "
        f"hold {committed}, failover {failover}, VMs in flight {in_flight}.",
        reason="held",
    )
