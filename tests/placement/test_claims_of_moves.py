"""Claims of VMs that move, grow, trade places or are evacuated (ADR 0029)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.utils import timezone

from capacity.ledger.rooms import rebuild_host_capacity
from capacity.models import HostCapacity, Reservation, ReservationAllocation
from hosts.agents.models import HostLease
from hosts.models import Host
from placement.tasks import reconcile_hosts
from tests.factories import (
    make_host,
    make_slot,
    make_vm,
)
from tests.failover.drill_rows import make_failover_slot
from tests.hosts.agents.agents import enrolled, fence_host
from tests.placement.claim_cloud import (
    GIB,
    LARGE,
    SMALL,
    STRANGER,
    Cloud,
    body,
    cloud_of_claims,
)
from tests.placement.client import (
    Answer,
    consumer_body,
    uuid,
)

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def cloud(settings: Any) -> Cloud:
    return cloud_of_claims(settings)


def test_a_migration_takes_the_place_of_its_vm_and_gives_it_back(cloud: Cloud) -> None:
    vm, migration = uuid(), uuid()
    assert cloud.claim(vm, cloud.held) == 204
    there = {vm: body(None, SMALL, 1), migration: body(cloud.held, SMALL, None)}
    assert cloud.post(there) == 204
    assert cloud.inside() == {migration: 8}
    assert cloud.claim(vm, cloud.free) == 204
    back = {vm: body(cloud.held, SMALL, 1), migration: body(None, SMALL, 1)}
    assert cloud.post(back) == 204
    assert cloud.inside() == {vm: 8}
    assert cloud.post({vm: body(None, SMALL, 2), migration: body(cloud.held, SMALL, None)}) == 204
    assert cloud.claim(vm, cloud.free, generation=None) == 204
    assert cloud.delete(migration) == 204
    assert (cloud.inside(), cloud.blocked_gib()) == ({}, 16)


def test_a_resize_on_its_host_keeps_to_the_slot(cloud: Cloud) -> None:
    vm, migration = uuid(), uuid()
    assert cloud.claim(vm, cloud.held) == 204
    assert cloud.claim(vm, cloud.held, asks=LARGE, generation=1) == 204
    assert (cloud.inside(), cloud.blocked_gib()) == ({vm: 16}, 0)
    shrunk = {"VCPU": 1, "MEMORY_MB": 1024}  # of no flavor that is known
    assert cloud.claim(vm, cloud.held, asks=shrunk, generation=2) == 204
    assert (cloud.inside(), cloud.blocked_gib()) == ({vm: 1}, 15)
    assert cloud.post({vm: body(None, SMALL, 3), migration: body(cloud.held, shrunk, None)}) == 204
    assert cloud.claim(vm, cloud.held) == 204
    assert cloud.inside() == {vm: 8, migration: 1}


def test_a_swap_is_judged_by_what_grows(cloud: Cloud) -> None:
    stranger, vm = uuid(), uuid()
    assert cloud.claim(stranger, cloud.free, project=STRANGER) == 204
    assert cloud.claim(vm, cloud.held) == 204
    grown = {"VCPU": 2, "MEMORY_MB": 9216}
    assert cloud.claim(stranger, cloud.held, project=STRANGER, generation=1) == 409
    assert cloud.claim(stranger, cloud.free, project=STRANGER, asks=grown, generation=1) == 204


def test_a_stranger_does_not_trade_for_the_room_of_a_slot(cloud: Cloud) -> None:
    """Together they hold no more of the host, but the slot that the owner leaves is held again."""
    stranger, vm = uuid(), uuid()
    assert cloud.claim(stranger, cloud.free, project=STRANGER) == 204
    assert cloud.claim(vm, cloud.held) == 204
    trade = {vm: body(cloud.free, SMALL, 1), stranger: body(cloud.held, SMALL, 1, STRANGER)}
    assert cloud.post(trade) == 409
    assert (cloud.inside(), cloud.blocked_gib()) == ({vm: 8}, 8)


def test_a_revert_takes_its_place_back_though_it_is_awaited_there(cloud: Cloud) -> None:
    vm, migration = uuid(), uuid()
    assert cloud.claim(vm, cloud.held) == 204
    there = {vm: body(None, SMALL, 1), migration: body(cloud.held, SMALL, None)}
    assert cloud.post(there) == 204
    (part,) = ReservationAllocation.objects.filter(vm_uuid=migration)
    ReservationAllocation.objects.create(
        reservation=part.reservation,
        vm_uuid=vm,
        state="expected",
        memory_bytes=part.memory_bytes,
        vcpus=part.vcpus,
        since=timezone.now(),
    )
    back = {vm: body(cloud.held, SMALL, None), migration: body(None, SMALL, 1)}
    assert cloud.post(back) == 204
    assert (cloud.inside(), cloud.blocked_gib()) == ({vm: 8}, 8)


def test_vms_that_trade_hosts_are_judged_by_what_each_host_gets(cloud: Cloud) -> None:
    half, small, alike, large = make_host("half", memory_gib=16, vcpus=4), uuid(), uuid(), uuid()
    make_slot(cloud.commitment, half, flavor_name="small", memory_gib=8, vcpus=2)
    rebuild_host_capacity()
    reconcile_hosts()

    def trade(here: str, there: str, size: dict[str, int]) -> Answer:
        held = {here: {cloud.free.openstack_id: SMALL}, there: {half.openstack_id: size}}
        consumers = {
            vm: consumer_body(hosts, generation=1, project_id=STRANGER)
            for vm, hosts in held.items()
        }
        return cloud.checked(cloud.client.post("/allocations", consumers, version="1.28"))

    assert cloud.claim(small, half, project=STRANGER) == 204
    assert cloud.claim(large, cloud.free, project=STRANGER, asks=LARGE) == 204
    refused = trade(small, large, LARGE)
    assert (refused.status, refused.error["code"]) == (409, "placement.undefined_code")
    detail = refused.error["detail"]
    assert f"provider '{half.openstack_id}' (host 'half') for consumer {large}." in detail
    assert "consumer generation conflict" not in detail
    assert cloud.delete(large) == 204
    assert cloud.claim(alike, cloud.free, project=STRANGER) == 204
    assert trade(small, alike, SMALL).status == 204


def test_an_evacuation_holds_both_hosts_until_nova_removes_one(cloud: Cloud) -> None:
    vm = uuid()
    assert cloud.claim(vm, cloud.free) == 204
    Host.objects.filter(pk=cloud.free.pk).update(state="down")
    assert cloud.claim(vm, cloud.held, cloud.free, generation=1) == 204
    assert cloud.inside() == {vm: 8}
    assert cloud.claim(vm, cloud.held, generation=2) == 204
    assert (cloud.inside(), cloud.blocked_gib()) == ({vm: 8}, 8)


def dies(host: Host) -> None:
    Host.objects.filter(pk=host.pk).update(state="down")


def is_fenced(host: Host) -> None:
    fence_host(host.name)


def covered(cloud: Cloud) -> tuple[str, Reservation]:
    """Return a stranger's VM on the free host and the failover reservation it has elsewhere."""
    vm = uuid()
    target = make_host("target", memory_gib=8, vcpus=2)
    rebuild_host_capacity()
    reconcile_hosts()
    assert cloud.claim(vm, cloud.free, project=STRANGER) == 204
    user = make_vm(host=cloud.free, openstack_id=vm, memory_gib=8, vcpus=2, project_id=STRANGER)
    spare = make_failover_slot("spare", target, [user], memory_gib=8)
    Reservation.objects.filter(pk=spare.pk).update(vcpus=2, blocked_vcpus=2)
    rebuild_host_capacity()
    return vm, Reservation.objects.get(pk=spare.pk)


def test_an_evacuated_vm_uses_up_its_failover_reservation(cloud: Cloud) -> None:
    vm, spare = covered(cloud)
    target = Host.objects.get(name="target")
    assert cloud.claim(uuid(), target, project=STRANGER) == 409
    dies(cloud.free)
    assert cloud.claim(vm, target, cloud.free, project=STRANGER, generation=1) == 204
    assert not Reservation.objects.filter(pk=spare.pk).exists()
    assert HostCapacity.objects.get(host=target).allocated_memory_bytes == 8 * GIB
    assert cloud.claim(vm, target, project=STRANGER, generation=2) == 204


@pytest.mark.parametrize("lose", [dies, is_fenced])
def test_a_vm_that_comes_alone_is_evacuated_where_its_host_is_down_or_fenced(
    cloud: Cloud, lose: Callable[[Host], None]
) -> None:
    vm, spare = covered(cloud)
    target = Host.objects.get(name="target")
    assert cloud.claim(vm, target, project=STRANGER, generation=1) == 409
    assert Reservation.objects.filter(pk=spare.pk).exists()
    lose(cloud.free)
    assert cloud.claim(vm, target, project=STRANGER, generation=1) == 204
    assert not Reservation.objects.filter(pk=spare.pk).exists()


def test_silence_of_an_agent_makes_no_move_an_evacuation(cloud: Cloud) -> None:
    vm, spare = covered(cloud)
    enrolled(cloud.free.name)
    HostLease.objects.update(liveness="down")
    target = Host.objects.get(name="target")
    assert cloud.claim(vm, target, project=STRANGER, generation=1) == 409
    assert Reservation.objects.filter(pk=spare.pk).exists()
