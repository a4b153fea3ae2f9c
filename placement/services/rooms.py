"""Claims settled in the ledger with the write that makes them (ADR 0014, 0029).

Where ``HEADROOM_ALLOCATION_SOURCE`` is ``placement`` a write of allocations, the rooms of the hosts
it touches, and the slots and in-flight rows of its VMs commit together. Lock order: rooms come
after providers here, and nothing that holds a room locks a provider.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Set
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
SELECT host, vm, memory_bytes, vcpus FROM placement_claimed(%(consumers)s::text[])
"""
HELD_ON: Final = f"""
SELECT root.uuid::text, host.name,
       ARRAY(SELECT part.uuid::text FROM placement_provider AS part WHERE part.root_id = root.id),
       room.committed_memory_bytes, room.failover_memory_bytes,
       room.in_flight_memory_bytes, room.committed_vcpus, room.failover_vcpus, room.in_flight_vcpus
  FROM hosts_host AS host
  JOIN placement_provider AS root ON {HOST_ROOT}
  JOIN capacity_hostcapacity AS room ON room.host_id = host.id
 WHERE host.id = %(host_id)s
"""  # noqa: S608 - constants only
HELD_BY: Final = """
SELECT vm, memory_bytes, vcpus FROM placement_claimed(%(consumers)s::text[])
 WHERE host = %(host_id)s
"""
CLASSES_OF: Final = {"memory_bytes": ("MEMORY_MB",), "vcpus": ("VCPU", "PCPU")}

#: Bytes and vCPUs by key of the host and UUID of the consumer.
Amounts = Mapping[tuple[int, str], tuple[int, int]]
#: Amount by class, by canonical UUID of the provider.
Resources = Mapping[str, Mapping[str, int]]


class TakesHeldRoom(Exception):  # noqa: N818 - says what is the case
    """A write takes room that is held for others: roll back, and tell it by ``held_for_others``.

    Attributes:
        eaten: Whose room.
    """

    def __init__(self, eaten: Eaten) -> None:
        super().__init__()
        self.eaten = eaten


def rooms_follow_allocations() -> bool:
    """Return whether allocations say what VMs take on hosts."""
    return bool(headroom().allocation_source == NAME)


def held_on_hosts(consumers: Collection[str]) -> Amounts:
    """Return the bytes and vCPUs that each consumer holds on each host."""
    rows = run(ON_HOSTS, {"consumers": sorted(consumers)}).fetchall()
    return {(host_id, vm): (memory_bytes, vcpus) for host_id, vm, memory_bytes, vcpus in rows}


def settle_claims(consumers: Collection[str], *, held_before: Amounts | None = None) -> list[Eaten]:
    """Settle a write of this transaction in the ledger and count the rooms of its hosts.

    Args:
        consumers: Canonical UUIDs of all that were written.
        held_before: What they held on hosts before the write; where each of them holds no more of
            a resource now, they take none from others. Left out, they held nothing.

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
    position = {resource: place for place, resource in enumerate(CLASSES_OF)}
    grown = {
        (host_id, resource)
        for (host_id, vm), amounts in held_now.items()
        for resource, place in position.items()
        if amounts[place] > held_before.get((host_id, vm), (0, 0))[place]
    }
    return [one for one in eaten if (one.host_id, one.resource) in grown]


def held_for_others(eaten: Eaten, asked: Mapping[str, Resources]) -> Conflict:
    """Return the refusal of a claim, worded so that Nova goes to its next host; and log it.

    What is told to be held is what is held without the claim, which was rolled back.

    Args:
        eaten: Whose room it would take.
        asked: What each consumer of the write was to hold, by its UUID.
    """
    rows = run(HELD_ON, {"host_id": eaten.host_id}).fetchall()
    if not rows:  # it went since the claim was rolled back
        return Conflict(
            "Unable to allocate inventory: the host is not known any more.", reason="held"
        )
    ((provider, host, tree, *held),) = rows
    in_memory = eaten.resource == "memory_bytes"
    unit = MIB if in_memory else 1
    committed, failover, in_flight = (
        amount // unit for amount in (held[:3] if in_memory else held[3:])
    )
    name = CLASSES_OF[eaten.resource][0]
    consumers = _who_grows(eaten, asked, frozenset(tree))
    log.info(
        "claim_of_held_room",
        host=host,
        facts={
            "consumers": consumers,
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
        f"provider '{provider}' (host '{host}') for consumer {', '.join(consumers)}. "
        f"The requested amount would take room that is held for others: "
        f"{eaten.taken // unit} would be taken or held of {eaten.effective // unit}; commitments "
        f"hold {committed}, failover {failover}, VMs in flight {in_flight}.",
        reason="held",
    )


def _who_grows(eaten: Eaten, asked: Mapping[str, Resources], tree: Set[str]) -> list[str]:
    """Return the consumers that would hold more of a host than they do; all if none would."""
    if len(asked) == 1:
        return list(asked)
    rows = run(HELD_BY, {"consumers": sorted(asked), "host_id": eaten.host_id}).fetchall()
    place = list(CLASSES_OF).index(eaten.resource)
    holds = {vm: amounts[place] for vm, *amounts in rows}
    unit = MIB if eaten.resource == "memory_bytes" else 1
    wanted = {
        vm: unit
        * sum(
            resources[provider].get(name, 0)
            for provider in tree & resources.keys()
            for name in CLASSES_OF[eaten.resource]
        )
        for vm, resources in asked.items()
    }
    growing = [vm for vm in sorted(asked) if wanted[vm] > holds.get(vm, 0)]
    return growing or sorted(asked)
