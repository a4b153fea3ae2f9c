"""What must hold while claims are the ledger, at every instant (spec placement, 8.4).

Where ``HEADROOM_ALLOCATION_SOURCE`` is ``placement`` the host rooms, slots and rows in flight say
the same as the allocations. Everything is counted here one row after the other, so that it can
contradict the statements that count at once.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection

from capacity.models import AllocationState, HostCapacity, Reservation, ReservationKind
from hosts.models import Host
from placement.models import Allocation, Origin, ResourceProvider
from scheduling.resources import ZERO, ResourceVector
from tests.blocked_views import AllocationView, ReservationView, unused_reservation_capacity
from tests.ledger import assert_rooms_add_up
from tests.placement.client import drift

MIB = 1 << 20
Held = dict[tuple[int, str], ResourceVector]


def assert_claims_are_the_ledger(gone: Collection[str] = ()) -> None:
    """No host is over capacity, and rooms, slots and usage say what allocations say.

    Args:
        gone: UUIDs of VMs that were deleted or failed to be built: nothing may be held for them.
    """
    assert_rooms_add_up()
    assert drift() == []
    held = held_by_consumers()
    assert_slots_block_by_the_rule()
    assert_rooms_follow_allocations(held)
    assert_vms_in_slots_hold_allocations(held, committed_slots())
    assert_nothing_is_held_for(gone)


def assert_slots_block_by_the_rule() -> None:
    """Each slot blocks what the rule of plans says of its VMs and of what is in flight."""
    in_flight = _vms_in_flight()
    for slot in committed_slots():
        on_all = set.intersection(*(in_flight[host_id] for host_id in slot.host_ids or {0}))
        wanted = unused_reservation_capacity(slot.view, in_flight_vm_uuids=on_all)
        assert slot.row.blocked == wanted, slot.row


def held_by_consumers() -> Held:
    """Return what each consumer holds on each host of ours, by host key and consumer UUID."""
    host_of = _host_of_provider()
    held: defaultdict[tuple[int, str], ResourceVector] = defaultdict(lambda: ZERO)
    for row in Allocation.objects.select_related("consumer", "resource_class").iterator():
        name = row.resource_class.name
        if row.provider_id in host_of and name in {"MEMORY_MB", "VCPU", "PCPU"}:
            is_memory = name == "MEMORY_MB"
            held[host_of[row.provider_id], str(row.consumer.uuid)] += ResourceVector(
                memory_bytes=row.used * MIB if is_memory else 0,
                vcpus=0 if is_memory else row.used,
            )
    return dict(held)


def assert_rooms_follow_allocations(held: Held) -> None:
    """A host's room has the allocations on it."""
    sums: defaultdict[int, ResourceVector] = defaultdict(lambda: ZERO)
    for (host_id, _), amounts in held.items():
        sums[host_id] += amounts
    with_provider = set(_host_of_provider().values())
    for room in HostCapacity.objects.filter(host_id__in=with_provider).select_related("host"):
        found = ResourceVector(memory_bytes=room.allocated_memory_bytes, vcpus=room.allocated_vcpus)
        assert found == sums[room.host_id], room.host.name


def assert_vms_in_slots_hold_allocations(held: Held, slots: list[SlotInRows]) -> None:
    """A VM seen in slots of a host has room allocated there, at least as much as its parts."""
    parts: defaultdict[tuple[int, str], ResourceVector] = defaultdict(lambda: ZERO)
    for slot in slots:
        for vm in slot.view.allocations:
            if vm.is_confirmed and slot.row.confirmed_host_id is not None:
                parts[slot.row.confirmed_host_id, vm.vm_uuid] += vm.resources
    for key, in_slots in parts.items():
        assert in_slots.fits_into(held.get(key, ZERO)), key


def assert_nothing_is_held_for(gone: Collection[str]) -> None:
    """No row in flight, slot or failover reservation names a VM that is gone."""
    flights = Reservation.objects.filter(kind=ReservationKind.IN_FLIGHT, vm_uuid__in=gone)
    assert not flights.exists(), list(flights)
    users = Reservation.objects.filter(allocations__vm_uuid__in=gone)
    assert not users.exists(), list(users)


class SlotInRows:
    """A committed slot with its VMs."""

    def __init__(self, row: Reservation) -> None:
        self.row = row
        self.host_ids = {key for key in (row.target_host_id, row.confirmed_host_id) if key}
        vms = [
            AllocationView(
                vm_uuid=vm.vm_uuid,
                resources=vm.size,
                is_confirmed=vm.state == AllocationState.CONFIRMED,
            )
            for vm in row.allocations.all()
        ]
        self.view = ReservationView(
            reservation_id=row.pk,
            slot=row.size if row.target_host_id else ZERO,
            target_host=str(row.target_host_id),
            host=str(row.confirmed_host_id),
            allocations=tuple(vms) if row.target_host_id else (),
        )


def committed_slots() -> list[SlotInRows]:
    rows = Reservation.objects.filter(kind=ReservationKind.COMMITTED)
    return [SlotInRows(row) for row in rows.prefetch_related("allocations")]


def _vms_in_flight() -> dict[int, set[str]]:
    vms: defaultdict[int, set[str]] = defaultdict(set)
    for row in Reservation.objects.filter(kind=ReservationKind.IN_FLIGHT):
        vms[row.target_host_id or 0].add(row.vm_uuid)
    return vms


def _host_of_provider() -> dict[int, int]:
    """Return the key of the host of each provider whose tree stands for one."""
    hosts = {host.provider_uuid or host.openstack_id: host.pk for host in Host.objects.all()}
    trees = ResourceProvider.objects.filter(root__origin=Origin.HOST)
    return {
        provider_id: hosts[str(root)]
        for provider_id, root in trees.values_list("pk", "root__uuid")
        if str(root) in hosts
    }
