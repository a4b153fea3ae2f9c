"""After any sequence of placements, landings, bookings and ends the ledger is what its rows say."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import transaction
from hypothesis import given
from hypothesis import strategies as st

from capacity.host_table import current_host_table
from capacity.ledger.claims import blocked_twice_on
from capacity.ledger.rooms import rebuild_host_capacity
from capacity.ledger.vms import forget_in_slots
from capacity.models import AllocationState, HostCapacity, Reservation, ReservationKind
from capacity.nova.in_flight import InFlightAsk, after_vm_changes, end_expired
from capacity.nova.placement import place_vm
from commitments.services.verification import verify_slots
from hosts.models import Host, Instance
from journal.actors import Actor, task_actor
from scheduling.engine import passing_hosts
from scheduling.evaluation import CompiledPipeline
from scheduling.filters import filter_has_enough_capacity
from scheduling.request import PlacementRequest
from scheduling.resources import GIB, ZERO, ResourceVector
from tests.blocked_views import AllocationView, ReservationView, unused_reservation_capacity
from tests.examples import few
from tests.factories import make_commitment, make_group, make_hosts, make_slot, make_vm
from tests.ledger import end_placement, expect_in_slot

pytestmark = pytest.mark.django_db

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
HOSTS = ("h1", "h2", "h3")
VMS = ("vm-a", "vm-b", "vm-c", "vm-d")
PROJECTS = ("project-1", "project-2")

ROOM_ONLY = CompiledPipeline(name="room", filters=(filter_has_enough_capacity,), weighers=())

sizes = st.integers(1, 6)
operations = st.one_of(
    st.tuples(
        st.just("place"),
        st.sampled_from(VMS),
        sizes,
        st.sampled_from(PROJECTS),
        st.lists(st.sampled_from(HOSTS), min_size=1, max_size=3),
        st.sampled_from(["create", "resize", "live_migration"]),
    ),
    st.tuples(st.just("land"), st.sampled_from(VMS), sizes, st.sampled_from(HOSTS)),
    st.tuples(st.just("vanish"), st.sampled_from(VMS)),
    st.tuples(st.just("expect"), st.sampled_from(VMS), sizes, st.integers(0, 3)),
    st.tuples(st.just("look")),
    st.tuples(st.just("forget"), st.sampled_from(VMS)),
    st.tuples(st.just("end"), st.sampled_from(VMS)),
    st.tuples(st.just("migrate"), st.integers(0, 3), st.sampled_from(HOSTS)),
    st.tuples(st.just("expire"), st.integers(0, 4000)),
)


def gib(amount: int) -> ResourceVector:
    return ResourceVector(memory_bytes=amount * GIB, vcpus=amount)


class World:
    def __init__(self) -> None:
        make_group("hana_1")
        self.hosts = {host.name: host for host in make_hosts(3, memory_gib=12, vcpus=12)}
        self.slots = [
            make_slot(
                make_commitment(project_id=project),
                self.hosts[host],
                memory_gib=4,
                vcpus=4,
            )
            for project, host in zip(PROJECTS * 2, ("h1", "h1", "h2", "h2"), strict=True)
        ]

    def place(self, vm: str, size: int, project: str, candidates: list[str], intent: str) -> None:
        ask = InFlightAsk(
            vm_uuid=vm,
            resources=gib(size),
            intent=intent,
            project_id=project,
            flavor_group_name="hana_1",
        )
        before = promised()
        fitting = self.fitting(ask)
        outcome = place_vm(
            ask, candidates=candidates, actor=Actor(name="nova"), request_id="r", now=NOW
        )
        for host_id, after in promised().items():
            if after != before[host_id]:
                room = HostCapacity.objects.get(host_id=host_id)
                grew = after.memory_bytes > before[host_id].memory_bytes
                assert not grew or after.memory_bytes <= room.effective_memory_bytes
        assert set(outcome.held) == set(candidates) & fitting, "as the engine sees it"

    @staticmethod
    def fitting(ask: InFlightAsk) -> set[str]:
        """Return the hosts that have room for a VM in the eyes of the engine."""
        request = PlacementRequest(
            request_key=ask.vm_uuid,
            memory_bytes=ask.resources.memory_bytes,
            vcpus=ask.resources.vcpus,
            project_id=ask.project_id,
            flavor_group=ask.flavor_group_name,
        )
        table = current_host_table()
        return {table.names[row] for row in passing_hosts(table, request, ROOM_ONLY).nonzero()[0]}

    def land(self, vm: str, size: int, host: str) -> None:
        Instance.objects.filter(openstack_id=vm).delete()
        make_vm(vm, self.hosts[host], openstack_id=vm, memory_gib=size, vcpus=size)
        rebuild_host_capacity()
        after_vm_changes([vm])

    def vanish(self, vm: str) -> None:
        Instance.objects.filter(openstack_id=vm).delete()
        rebuild_host_capacity()
        after_vm_changes()

    def expect(self, vm: str, size: int, slot: int) -> None:
        expect_in_slot(self.slots[slot].pk, vm, gib(size), now=NOW)

    def look(self) -> None:
        verify_slots(actor=task_actor("test"), request_id="r", now=NOW, is_full=True)

    def forget(self, vm: str) -> None:
        forget_in_slots([vm])

    def end(self, vm: str) -> None:
        end_placement(vm)

    def migrate(self, slot: int, host: str) -> None:
        with transaction.atomic():
            Reservation.objects.filter(pk=self.slots[slot].pk).update(target_host=self.hosts[host])
            rebuild_host_capacity()

    def expire(self, seconds: int) -> None:
        end_expired(NOW + timedelta(seconds=seconds))


def promised() -> dict[int, ResourceVector]:
    """Return what is promised on each host: all blocks, what is blocked twice only once."""
    twice = blocked_twice_on(set(Host.objects.values_list("pk", flat=True)))
    return {
        room.host_id: ResourceVector(
            memory_bytes=room.allocated_memory_bytes
            + room.committed_memory_bytes
            + room.in_flight_memory_bytes,
            vcpus=room.allocated_vcpus + room.committed_vcpus + room.in_flight_vcpus,
        )
        - twice.get(room.host_id, ZERO)
        for room in HostCapacity.objects.all()
    }


def assert_blocks_are_those_of_the_pure_rule() -> None:
    flying: dict[int, set[str]] = {}
    for row in Reservation.objects.filter(kind=ReservationKind.IN_FLIGHT):
        flying.setdefault(row.target_host_id or 0, set()).add(row.vm_uuid)
    for row in Reservation.objects.prefetch_related("allocations"):
        hosts = {row.target_host_id, row.confirmed_host_id} - {None}
        held = set.intersection(*(flying.get(host or 0, set()) for host in hosts))
        view = ReservationView(
            reservation_id=row.pk,
            slot=ResourceVector(memory_bytes=row.memory_bytes, vcpus=row.vcpus),
            is_committed=row.kind == ReservationKind.COMMITTED,
            target_host=str(row.target_host_id),
            host=str(row.confirmed_host_id),
            allocations=tuple(
                AllocationView(
                    vm_uuid=vm.vm_uuid,
                    resources=ResourceVector(memory_bytes=vm.memory_bytes, vcpus=vm.vcpus),
                    is_confirmed=vm.state == AllocationState.CONFIRMED,
                )
                for vm in row.allocations.all()
            ),
        )
        blocked = ResourceVector(memory_bytes=row.blocked_memory_bytes, vcpus=row.blocked_vcpus)
        assert blocked == unused_reservation_capacity(view, in_flight_vm_uuids=held)


@few(15)
@given(steps=st.lists(operations, min_size=3, max_size=12))
def test_ledger_equals_its_rows_after_every_operation(steps: list[tuple[Any, ...]]) -> None:
    savepoint = transaction.savepoint()
    try:
        world = World()
        assert rebuild_host_capacity() == 0
        for name, *arguments in steps:
            getattr(world, name)(*arguments)
            assert_blocks_are_those_of_the_pure_rule()
            assert rebuild_host_capacity() == 0, (name, arguments)
    finally:
        transaction.savepoint_rollback(savepoint)
