"""Allocations as the source of what VMs take on hosts (design, "Data")."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
from django.db import transaction
from django.utils import timezone

from capacity.ledger.allocated import UnknownSourceError, drift_from
from capacity.ledger.rooms import move_blocks, rebuild_host_capacity
from capacity.metrics.gauges import ALLOCATION_DRIFT
from capacity.models import AllocationState, HostCapacity, ReservationKind
from hosts.models import Host, Instance, Region
from journal.metrics import metrics_page
from placement.models import AllocationEvent, Consumer
from placement.tasks import reconcile_hosts
from scheduling.resources import ResourceVector
from tests.commitments.slot_worlds import verify
from tests.factories import make_commitment, make_host, make_reservation, make_slot, make_vm
from tests.ledger import assert_rooms_add_up, end_placement
from tests.placement.client import PlacementClient, consumer_body, placement_settings, uuid
from tests.reads import rows_read

pytestmark = pytest.mark.django_db(transaction=True)

GIB = 1 << 30
TWO_GIB = {"VCPU": 2, "MEMORY_MB": 2048}


def use_source(settings: Any, name: str) -> None:
    settings.HEADROOM = settings.HEADROOM.model_copy(update={"allocation_source": name})


@pytest.fixture
def placement(settings: Any) -> PlacementClient:
    placement_settings(settings, host_inventories="host", enforce_new_defaults=False)
    use_source(settings, "placement")
    return PlacementClient(X_Roles="admin,service")


@pytest.fixture
def hosts(placement: PlacementClient) -> tuple[Host, Host]:
    made = make_host("h1", memory_gib=64, vcpus=32), make_host("h2", memory_gib=64, vcpus=32)
    rebuild_host_capacity()
    reconcile_hosts()
    return made


def taken(host: Host) -> tuple[int, int]:
    """Return GiB and vCPUs that VMs take on a host."""
    room = HostCapacity.objects.get(host=host)
    return room.allocated_memory_bytes // GIB, room.allocated_vcpus


def used_up(host: Host) -> int:
    """Return the GiB of a host that VMs and reservations take together."""
    room = HostCapacity.objects.get(host=host)
    held = room.committed_memory_bytes + room.failover_memory_bytes + room.in_flight_memory_bytes
    return (room.allocated_memory_bytes + held) // GIB


def allocate(client: PlacementClient, consumer: str, host: Host, **options: Any) -> int:
    held = {host.openstack_id: TWO_GIB}
    return client.allocate(consumer, held, **options).status


@pytest.mark.sql("placement_allocated")
def test_writes_of_allocations_change_rooms_at_once(
    placement: PlacementClient, hosts: tuple[Host, Host]
) -> None:
    first, second = hosts
    consumer, other = uuid(), uuid()
    assert allocate(placement, consumer, first) == 204
    assert taken(first) == (2, 2)
    assert allocate(placement, consumer, second, generation=1) == 204
    assert (taken(first), taken(second)) == ((0, 0), (2, 2))
    swap = {
        consumer: consumer_body({}, generation=2),
        other: consumer_body({second.openstack_id: {"VCPU": 1}, first.openstack_id: TWO_GIB}),
    }
    assert placement.post("/allocations", swap, version="1.28").status == 204
    assert (taken(first), taken(second)) == ((2, 2), (0, 1))
    assert placement.delete(f"/allocations/{other}").status == 204
    assert (taken(first), taken(second)) == ((0, 0), (0, 0))


def allocations_read_by_a_claim(client: PlacementClient, host: Host) -> int:
    """Claim a part of a host for a new VM; return how many rows of allocations that looked at."""
    with transaction.atomic():
        before = rows_read("placement_allocation")
        assert allocate(client, uuid(), host) == 204
        return rows_read("placement_allocation") - before


@pytest.mark.sql("placement_allocated")
def test_a_claim_on_a_host_of_many_vms_reads_no_more_than_on_an_empty_one(
    placement: PlacementClient, hosts: tuple[Host, Host]
) -> None:
    first, second = hosts
    assert allocate(placement, uuid(), first) == 204  # the first of its project does more
    alone = allocations_read_by_a_claim(placement, first)
    for _ in range(8):
        assert allocate(placement, uuid(), second) == 204
    assert allocations_read_by_a_claim(placement, second) == alone
    assert (taken(first), taken(second)) == ((4, 4), (18, 18))


def test_a_write_that_is_refused_leaves_rooms_as_they_were(
    placement: PlacementClient, hosts: tuple[Host, Host]
) -> None:
    first, _ = hosts
    assert allocate(placement, uuid(), first) == 204
    assert placement.allocate(uuid(), {first.openstack_id: {"VCPU": 31}}).status == 409
    assert taken(first) == (2, 2)


def test_a_reshape_counts_what_moves_to_a_child(
    placement: PlacementClient, hosts: tuple[Host, Host], settings: Any
) -> None:
    placement_settings(settings, host_inventories="api", enforce_new_defaults=False)
    use_source(settings, "placement")
    host = make_host("h3", memory_gib=64, vcpus=32)
    rebuild_host_capacity([host.pk])
    reconcile_hosts()
    root, consumer = host.openstack_id, uuid()
    placement.set_inventory(root, VCPU=8, MEMORY_MB=8192)
    assert allocate(placement, consumer, host) == 204
    cell = placement.make_provider("cell", parent=root)
    generation = placement.generation(root)
    body = {
        "inventories": {
            root: {
                "resource_provider_generation": generation,
                "inventories": {"VCPU": {"total": 8}},
            },
            cell: {
                "resource_provider_generation": 0,
                "inventories": {"MEMORY_MB": {"total": 8192}, "PCPU": {"total": 4}},
            },
        },
        "allocations": {
            consumer: consumer_body(
                {root: {"VCPU": 1}, cell: {"MEMORY_MB": 4096, "PCPU": 2}}, generation=1
            )
        },
    }
    answer = placement.post("/reshaper", body, version="1.30")
    assert answer.status == 204, answer.content
    assert taken(host) == (4, 3)


def test_a_claim_takes_over_what_a_row_in_flight_blocked(
    placement: PlacementClient, hosts: tuple[Host, Host]
) -> None:
    first, _ = hosts
    vm = uuid()
    make_reservation(
        first,
        kind=ReservationKind.IN_FLIGHT,
        memory_gib=2,
        vcpus=2,
        confirmed_host=None,
        vm_uuid=vm,
        end_time=timezone.now() + timedelta(minutes=5),
        placement_id=uuid4(),
    )
    assert allocate(placement, vm, first) == 204
    assert (taken(first), used_up(first)) == ((2, 2), 2)
    assert end_placement(vm) == 0
    assert (taken(first), used_up(first)) == ((2, 2), 2)


def test_a_vm_of_a_slot_counts_from_its_claim(
    placement: PlacementClient, hosts: tuple[Host, Host]
) -> None:
    first, _ = hosts
    slot = make_slot(make_commitment(), first, memory_gib=4, vcpus=4)
    vm = make_vm(openstack_id=uuid(), memory_gib=2, vcpus=2, slot=slot, slot_state="expected")
    assert allocate(placement, vm.openstack_id, first) == 204
    assert (taken(first), used_up(first)) == ((2, 2), 4)
    Instance.objects.filter(pk=vm.pk).update(host=first)
    assert verify().events == {}
    assert (taken(first), used_up(first)) == ((2, 2), 4)
    assert_rooms_add_up()


def test_a_vm_that_left_placement_first_keeps_its_slot_whole(
    placement: PlacementClient, hosts: tuple[Host, Host]
) -> None:
    first, _ = hosts
    slot = make_slot(make_commitment(), first, memory_gib=4, vcpus=4)
    vm = make_vm(host=first, openstack_id=uuid(), memory_gib=2, vcpus=2, slot=slot)
    assert slot.allocations.get().state == AllocationState.CONFIRMED
    assert allocate(placement, vm.openstack_id, first) == 204
    assert (taken(first), used_up(first)) == ((2, 2), 4)
    placement.delete(f"/allocations/{vm.openstack_id}")
    assert used_up(first) == 4


def test_no_room_is_promised_that_an_allocation_took(
    placement: PlacementClient, hosts: tuple[Host, Host]
) -> None:
    first, _ = hosts
    held = {first.openstack_id: {"MEMORY_MB": 62 * 1024, "VCPU": 1}}
    assert placement.allocate(uuid(), held).status == 204
    asked = {first.pk: ResourceVector(memory_bytes=3 * GIB, vcpus=1)}
    assert move_blocks(ReservationKind.FAILOVER, asked) == (first.pk,)
    fits = {first.pk: ResourceVector(memory_bytes=2 * GIB, vcpus=1)}
    assert move_blocks(ReservationKind.FAILOVER, fits) == ()


def test_a_host_without_a_provider_is_counted_from_the_vm_list(
    placement: PlacementClient, hosts: tuple[Host, Host]
) -> None:
    assert placement
    lonely = make_host("without", openstack_id="17", memory_gib=64, vcpus=32)
    make_vm(host=lonely, memory_gib=8, vcpus=3)
    make_vm(host=hosts[0], memory_gib=8, vcpus=3)
    rebuild_host_capacity()
    assert taken(lonely) == (8, 3)
    assert taken(hosts[0]) == (0, 0)


def test_a_run_counts_what_no_write_counted(
    placement: PlacementClient, hosts: tuple[Host, Host], settings: Any
) -> None:
    first, second = hosts
    use_source(settings, "instances")
    assert allocate(placement, uuid(), first) == 204
    assert taken(first) == (0, 0)
    assert [one.host_id for one in drift_from("placement")] == [first.pk]
    use_source(settings, "placement")
    assert reconcile_hosts()["recounted"] == 1
    assert (taken(first), taken(second)) == ((2, 2), (0, 0))
    assert reconcile_hosts()["recounted"] == 0
    make_vm(host=second, memory_gib=8, vcpus=3)
    rebuild_host_capacity()
    (drift,) = [one for one in drift_from("instances") if one.host_id == second.pk]
    assert (drift.zone, drift.memory_bytes, drift.vcpus) == ("az-a", 8 * GIB, 3)


def test_the_vm_list_stays_the_source_unless_another_is_chosen(
    placement: PlacementClient, hosts: tuple[Host, Host], settings: Any
) -> None:
    use_source(settings, "instances")
    first, _ = hosts
    make_vm(host=first, memory_gib=8, vcpus=3)
    assert allocate(placement, uuid(), first) == 204
    rebuild_host_capacity()
    assert taken(first) == (8, 3)
    assert "recounted" not in reconcile_hosts()


def test_a_source_that_nobody_offers_is_an_error(settings: Any) -> None:
    use_source(settings, "hypervisor")
    with pytest.raises(UnknownSourceError, match="hypervisor"):
        rebuild_host_capacity()


def test_uuid_of_a_consumer_may_be_any_spelling_of_a_vm(
    placement: PlacementClient, hosts: tuple[Host, Host]
) -> None:
    first, _ = hosts
    slot = make_slot(make_commitment(), first, memory_gib=4, vcpus=4)
    vm = uuid()
    make_vm(openstack_id=vm, memory_gib=2, vcpus=2, slot=slot, slot_state="expected")
    shouted = str(UUID(vm)).upper()
    assert allocate(placement, shouted, first) == 204
    assert (taken(first), used_up(first)) == ((2, 2), 4)


def told_drift() -> dict[tuple[str, ...], float]:
    return {
        (family.name.removeprefix("cortex_host_allocation_drift_"), *sample.labels.values()): (
            sample.value
        )
        for family in ALLOCATION_DRIFT.collect()
        for sample in family.samples
    }


def test_what_the_vm_list_says_otherwise_is_told(
    placement: PlacementClient, hosts: tuple[Host, Host], settings: Any
) -> None:
    first, second = hosts
    make_vm(host=first, memory_gib=8, vcpus=3)
    make_vm(host=second, memory_gib=2, vcpus=2)
    rebuild_host_capacity()
    assert allocate(placement, uuid(), second) == 204
    assert told_drift() == {
        ("hosts", "instances", "az-a"): 1,
        ("bytes", "instances", "az-a"): 8 * GIB,
    }
    assert b"cortex_host_allocation_drift_hosts{" in metrics_page()
    use_source(settings, "instances")
    assert told_drift() == {}


def test_a_list_older_than_a_claim_is_no_drift(
    placement: PlacementClient, hosts: tuple[Host, Host], settings: Any
) -> None:
    """A VM that came, one that moved and one that went since the list was taken; one that stays."""
    first, second = hosts
    went, moved, stays = (make_vm(host=first, memory_gib=2, vcpus=2) for _ in range(3))
    rebuild_host_capacity()
    for vm in (went, moved, stays):
        assert allocate(placement, vm.openstack_id, first) == 204
    Consumer.objects.update(updated_at=timezone.now() - timedelta(hours=2))
    AllocationEvent.objects.update(created_at=timezone.now() - timedelta(hours=2))
    region = Region.objects.create(taken_at=(timezone.now() - timedelta(hours=1)).isoformat())
    assert told_drift() == {}

    assert allocate(placement, uuid(), second) == 204
    assert allocate(placement, moved.openstack_id, second, generation=1) == 204
    assert placement.delete(f"/allocations/{went.openstack_id}").status == 204
    assert (taken(first), taken(second)) == ((2, 2), (4, 4))
    assert told_drift() == {}

    # A list that was taken when all of this had long happened, and says nothing of it, differs.
    grace = timedelta(seconds=settings.HEADROOM.slots.allocation_grace_seconds)
    Region.objects.filter(pk=region.pk).update(taken_at=(timezone.now() + grace).isoformat())
    assert told_drift() == {
        ("hosts", "instances", "az-a"): 2,
        ("bytes", "instances", "az-a"): 8 * GIB,
    }
