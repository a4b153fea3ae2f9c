"""Claims of Placement as changes of the ledger (ADR 0029).

An allocation write settles what it means here in its own transaction: in-flight rows end, slots are
joined, kept and left, failover room that an evacuated VM uses is given up, and the rooms are
counted. The texts are run by whoever holds the allocations, which gives its rows as SQL; rooms are
locked by primary key, then slots.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple

from django.db import connection, transaction

from capacity.hooks import allocation_sources
from capacity.ledger.allocated import chosen_source, claims_unlisted_since
from capacity.ledger.rooms import lock_reservations, refresh_blocks
from capacity.models import HostCapacity, Reservation, ReservationAllocation, ReservationKind
from journal.statements import fetch_rows
from scheduling.resources import ZERO, ResourceVector

JOIN_SLOTS: Final = """
SELECT capacity_join_slots(%(vm)s, %(host)s, %(project)s, %(memory_bytes)s, %(vcpus)s,
                           %(left)s::bigint[], %(groups)s::text[], %(slots)s::bigint[])
"""
BLOCKED_TWICE: Final = """
SELECT one.host_id, twice.memory_bytes, twice.vcpus
  FROM unnest(%s::bigint[]) AS one (host_id), capacity_blocked_twice(one.host_id) AS twice
"""


class Eaten(NamedTuple):
    """Room that a claim would take from those for whom it is held.

    Attributes:
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
    """Who holds what where, for readers of the VM list, which may be older.

    Attributes:
        claimed_on: What VMs hold on hosts, by VM uuid and key of the host.
        hosts: Hosts of which all claims are known; on others the VM list alone counts.
        listed: VMs whose last claim is so much older than the VM list that this must show where
            they are: where it says otherwise, it is right.
    """

    claimed_on: Mapping[str, Mapping[int, ResourceVector]] = MappingProxyType({})
    hosts: frozenset[int] = frozenset()
    listed: frozenset[str] = frozenset()

    def hosts_of(self, vm_uuid: str) -> frozenset[int]:
        """Return the keys of the hosts on which a VM holds something."""
        return frozenset(self.claimed_on.get(vm_uuid, ()))

    def held_on(self, vm_uuid: str, host_id: int | None) -> ResourceVector | None:
        """Return what a VM holds on a host, None for nothing."""
        return None if host_id is None else self.claimed_on.get(vm_uuid, {}).get(host_id)

    def deny(self, vm_uuid: str, host_id: int | None) -> bool:
        """Return whether a VM is not on a host, whatever the VM list says."""
        return host_id in self.hosts and host_id not in self.hosts_of(vm_uuid)


def known_claims(vm_uuids: Collection[str], host_ids: Collection[int]) -> KnownClaims:
    """Return the claims of VMs; none are known where the VM list is the source."""
    source = allocation_sources().get(chosen_source())
    if source is None:
        return KnownClaims()
    with connection.cursor() as cursor:
        cursor.execute(source.claims, {"vm_uuids": sorted(vm_uuids), "host_ids": sorted(host_ids)})
        rows = cursor.fetchall()
    since = claims_unlisted_since()
    claimed = [row for row in rows if row[1] is not None]
    claimed_on: defaultdict[str, dict[int, ResourceVector]] = defaultdict(dict)
    for host_id, vm_uuid, _, memory_bytes, vcpus in claimed:
        claimed_on[vm_uuid][host_id] = ResourceVector(memory_bytes=memory_bytes, vcpus=vcpus)
    return KnownClaims(
        claimed_on=dict(claimed_on),
        hosts=frozenset(row[0] for row in rows if row[1] is None),
        listed=frozenset(row[1] for row in claimed if since and row[2] < since),
    )


def regroup_claim(parts: Sequence[ReservationAllocation], host_id: int, *, group: str) -> bool:
    """Let a claimed VM leave slots that are not of its flavor group, for slots that are.

    A claim says no flavor, so it may have joined a slot of another group. What the slots that it
    leaves ask for again has to fit beside what the slots that it joins give up.

    Args:
        parts: The VM in slots of one project on the host, whose room is locked.
        group: The VM's flavor group; empty for none, then it joins no slot.

    Returns:
        Whether there was room; else the VM stays where it is.
    """
    left = [part.reservation_id for part in parts]
    size = sum((part.size for part in parts), ZERO)
    project_id = parts[0].reservation.project_id
    slots = Reservation.objects.filter(
        kind=ReservationKind.COMMITTED, target_host=host_id, project_id=project_id
    )
    own = lock_reservations(slots.filter(flavor_group_name=group).values_list("pk", flat=True))
    with transaction.atomic():
        ((touched,),) = fetch_rows(
            JOIN_SLOTS,
            {
                "vm": parts[0].vm_uuid,
                "host": host_id,
                "project": project_id,
                "memory_bytes": size.memory_bytes,
                "vcpus": size.vcpus,
                "left": left,
                "groups": [group],
                "slots": sorted(own),
            },
        )
        refused = refresh_blocks(touched, must_fit=True)
        transaction.set_rollback(bool(refused))
    return not refused


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
