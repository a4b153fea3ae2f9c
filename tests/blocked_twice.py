"""What slots and VMs in flight into them block together, counted one row after the other.

It can contradict ``capacity_blocked_twice``, which counts for claims and the guard.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from django.db.models import Q

from capacity.models import Reservation, ReservationKind
from scheduling.resources import ZERO, ResourceVector


@dataclass(frozen=True, slots=True, kw_only=True)
class PooledBlock:
    """A block on a host with whoever may use it.

    Attributes:
        pool: (project, flavor group) of a committed slot or of a VM in flight.
        block: What it blocks.
        vm_uuids: Users of a failover slot; the VM in flight; none for a committed slot.
        is_evacuation: Whether the VM in flight is evacuated, and so may use its failover slot.
    """

    pool: tuple[str, str]
    block: ResourceVector
    vm_uuids: frozenset[str] = frozenset()
    is_evacuation: bool = False


def blocked_twice(
    *,
    committed: Iterable[PooledBlock],
    failover: Iterable[PooledBlock],
    in_flight: Iterable[PooledBlock],
) -> ResourceVector:
    """Return what slots and the VMs in flight that may use them block on one host together.

    A VM may be placed into the slots of its project and group, an evacuated one into its failover
    slot. Until it lands, its in-flight row blocks the same room as the slot (each blocks in full,
    spec commitments, 10.1). What is really promised on the host is the sum of all blocks less this.

    Args:
        committed: What committed slots block on the host.
        failover: What failover slots block on the host.
        in_flight: What in-flight rows block on the host.
    """
    total = ZERO
    left = [(slot.vm_uuids, slot.block) for slot in failover]
    flying: dict[tuple[str, str], ResourceVector] = {}
    for row in in_flight:
        rest = row.block
        for index, (users, room) in enumerate(left):
            if row.is_evacuation and users & row.vm_uuids:
                shared = _smaller(rest, room)
                left[index] = (users, room - shared)
                rest -= shared
                total += shared
        flying[row.pool] = flying.get(row.pool, ZERO) + rest
    held: dict[tuple[str, str], ResourceVector] = {}
    for slot in committed:
        held[slot.pool] = held.get(slot.pool, ZERO) + slot.block
    for pool in sorted(held):
        total += _smaller(held[pool], flying.get(pool, ZERO))
    return total


def _smaller(left: ResourceVector, right: ResourceVector) -> ResourceVector:
    return ResourceVector(
        memory_bytes=min(left.memory_bytes, right.memory_bytes),
        vcpus=min(left.vcpus, right.vcpus),
    )


def blocked_twice_by_row(host_ids: Collection[int]) -> dict[int, ResourceVector]:
    """Return what slots and VMs in flight into them block together, by host."""
    wanted = set(host_ids)
    rows = (
        Reservation.objects.filter(Q(target_host__in=wanted) | Q(confirmed_host__in=wanted))
        .prefetch_related("allocations")
        .order_by("pk")
    )
    by_host: defaultdict[int, defaultdict[str, list[PooledBlock]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for row in rows:
        for host_id in wanted & {row.target_host_id, row.confirmed_host_id}:
            by_host[host_id][row.kind].append(_pooled(row))
    shared = {
        host_id: blocked_twice(
            committed=kinds[ReservationKind.COMMITTED],
            failover=kinds[ReservationKind.FAILOVER],
            in_flight=kinds[ReservationKind.IN_FLIGHT],
        )
        for host_id, kinds in sorted(by_host.items())
        if ReservationKind.IN_FLIGHT in kinds
    }
    return {host_id: block for host_id, block in shared.items() if block != ResourceVector()}


def _pooled(row: Reservation) -> PooledBlock:
    users: set[str] = set()
    if row.kind == ReservationKind.IN_FLIGHT:
        users = {row.vm_uuid}
    elif row.kind == ReservationKind.FAILOVER:
        users = {vm.vm_uuid for vm in row.allocations.all()}
    return PooledBlock(
        pool=(row.project_id, row.flavor_group_name),
        block=ResourceVector(memory_bytes=row.blocked_memory_bytes, vcpus=row.blocked_vcpus),
        vm_uuids=frozenset(users),
        is_evacuation=row.intent == "evacuate",
    )
