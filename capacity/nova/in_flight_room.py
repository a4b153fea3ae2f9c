"""What in-flight reservations mean for the room of hosts (spec scheduling, 16.3)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection

from django.db.models import Q

from capacity.ledger.in_flight_end import PooledBlock, blocked_twice
from capacity.models import Reservation, ReservationKind
from scheduling.resources import ResourceVector


def blocked_twice_on(host_ids: Collection[int]) -> dict[int, ResourceVector]:
    """Return what slots and VMs in flight into them block together, by host.

    Free room as the sums of a host's room say it is too low by this until the VMs land: whoever
    judges a host over-subscribed adds it back.

    Args:
        host_ids: Primary keys of the hosts to look at.

    Returns:
        Hosts where something is blocked twice.
    """
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
