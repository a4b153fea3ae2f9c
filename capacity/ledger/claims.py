"""Claims of Placement as changes of the ledger (ADR 0029).

An allocation write settles what it means here in its own transaction: in-flight rows end, slots are
joined, kept and left, failover room that an evacuated VM uses is given up, and the rooms are
counted. The texts are run by whoever holds the allocations, which gives its rows as SQL; rooms are
locked by primary key, then slots.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final, NamedTuple

from django.db import connection

from capacity.hooks import allocation_sources
from capacity.ledger.allocated import chosen_source
from capacity.models import HostCapacity, ReservationKind
from journal.statements import fetch_rows
from scheduling.resources import ZERO, ResourceVector

BLOCKED_TWICE: Final = """
SELECT one.host_id, twice.memory_bytes, twice.vcpus
  FROM unnest(%s::bigint[]) AS one (host_id), capacity_blocked_twice(one.host_id) AS twice
"""


class Eaten(NamedTuple):
    """Room that a claim would take from those for whom it is held.

    Attributes:
        host_id: Key of the host.
        resource: ``memory_bytes`` or ``vcpus``.
        taken: What VMs and holds would take of it.
        effective: What there is of it.
        before: What was taken before the claim.
    """

    host_id: int
    resource: str
    taken: int
    effective: int
    before: int


class KnownClaims(NamedTuple):
    """Who holds what where, for readers of the VM list, which is older.

    Attributes:
        places: (VM uuid, host key) of those that hold something there.
        hosts: Hosts of which all claims are known; on others the VM list alone counts.
    """

    places: frozenset[tuple[str, int]] = frozenset()
    hosts: frozenset[int] = frozenset()

    def deny(self, vm_uuid: str, host_id: int | None) -> bool:
        """Return whether a VM is not on a host, whatever the VM list says."""
        return host_id in self.hosts and (vm_uuid, host_id) not in self.places


def known_claims(vm_uuids: Collection[str], host_ids: Collection[int]) -> KnownClaims:
    """Return the claims of VMs; none are known where the VM list is the source."""
    source = allocation_sources().get(chosen_source())
    if source is None:
        return KnownClaims()
    with connection.cursor() as cursor:
        cursor.execute(source.claims, {"vm_uuids": sorted(vm_uuids), "host_ids": sorted(host_ids)})
        rows = cursor.fetchall()
    return KnownClaims(
        places=frozenset((vm_uuid, host_id) for host_id, vm_uuid in rows if vm_uuid is not None),
        hosts=frozenset(host_id for host_id, vm_uuid in rows if vm_uuid is None),
    )


def still_eaten(eaten: Iterable[Eaten]) -> list[Eaten]:
    """Return what is taken too much after more room was given up."""
    asked = list(eaten)
    rooms = {
        room.host_id: room
        for room in HostCapacity.objects.filter(host__in=[one.host_id for one in asked])
    }
    twice = blocked_twice_on(rooms)
    now = [
        one._replace(
            taken=_taken(rooms[one.host_id], one.resource)
            - getattr(twice.get(one.host_id, ZERO), one.resource)
        )
        for one in asked
    ]
    return [one for one in now if one.taken > max(one.effective, one.before)]


def blocked_twice_on(host_ids: Collection[int]) -> dict[int, ResourceVector]:
    """Return what slots and VMs in flight into them block together, by host.

    Free room as the sums of a host's room say it is too low by this until the VMs land: whoever
    judges a host adds it back (spec scheduling, 16.3).

    Args:
        host_ids: Primary keys of the hosts to look at.

    Returns:
        Hosts where something is blocked twice.
    """
    found = {
        host_id: ResourceVector(memory_bytes=memory_bytes, vcpus=vcpus)
        for host_id, memory_bytes, vcpus in fetch_rows(BLOCKED_TWICE, [sorted(host_ids)])
    }
    return {host_id: block for host_id, block in found.items() if block != ZERO}


def _taken(room: HostCapacity, resource: str) -> int:
    kinds = ("allocated", *ReservationKind.values)
    return sum(int(getattr(room, f"{kind}_{resource}")) for kind in kinds)
