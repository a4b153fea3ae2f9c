"""Bursts of boots with sixteen clients: claims are the ledger, with and without the scheduler."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from django.db import connection, transaction
from django.utils import timezone

from capacity.ledger.rooms import rebuild_host_capacity
from capacity.models import HostCapacity, Reservation, ReservationAllocation, ReservationKind
from capacity.nova.in_flight import InFlightAsk, InFlightHold, end_expired, hold_alone
from failover.models import FailoverReservation
from hosts.models import Host
from placement.models import Consumer
from placement.tasks import reconcile_hosts
from scheduling.resources import ResourceVector
from tests.claims import assert_claims_are_the_ledger
from tests.concurrency.at_once import Sessions, wait_for_a_blocked_session
from tests.concurrency.test_change_races import on_own_connection
from tests.factories import make_commitment, make_group, make_hosts, make_slot, make_vm
from tests.failover.drill_rows import make_failover_slot
from tests.killing import in_children, run_in_child
from tests.placement.client import PlacementClient, placement_settings, uuid

pytestmark = pytest.mark.django_db(transaction=True)

CLIENTS = 16
GIB = 1 << 30
OWNER, STRANGER = "owner", "stranger"
ASKED = {"VCPU": 1, "MEMORY_MB": 1024}
Boot = Callable[[str], int]


@pytest.fixture(autouse=True)
def _placement_is_the_source(settings: Any) -> None:
    placement_settings(settings, host_inventories="host", enforce_new_defaults=False)
    settings.HEADROOM = settings.HEADROOM.model_copy(update={"allocation_source": "placement"})


def make_cloud(hosts: int, places: int, *, held: int = 0) -> list[Host]:
    """Make hosts for some VMs of 1 GiB each; the owner holds the first ``held`` of them."""
    made = make_hosts(hosts, memory_gib=places, vcpus=places)
    group = make_group("general", flavors=[("tiny", 1024, 1)])
    commitment = make_commitment(group=group, project_id=OWNER, amount_gib=held * places)
    for host in made[:held]:
        make_slot(commitment, host, flavor_name="tiny", memory_gib=places, vcpus=places)
    rebuild_host_capacity()
    reconcile_hosts()
    return made


def claim(vm: str, host: Host, project: str) -> int:
    client = PlacementClient(X_Roles="admin,service")
    return client.allocate(vm, {host.openstack_id: ASKED}, project_id=project).status


def hold(vm: str, hosts: list[Host], project: str) -> InFlightHold | None:
    """Hold three of some hosts for a VM, as the scheduler does."""
    ask = InFlightAsk(
        vm_uuid=vm,
        resources=ResourceVector(memory_bytes=GIB, vcpus=1),
        intent="create",
        project_id=project,
        flavor_group_name="general",
    )
    return hold_alone(ask, candidates=[host.name for host in hosts], request_id="boot", max_held=3)


def boot_anywhere(hosts: list[Host], project: str, *, asks: bool) -> Boot:
    """Return what boots a VM as Nova does: one host after the other until a claim is granted.

    Args:
        hosts: Where it may be.
        project: Whose VM it is.
        asks: Whether the scheduler is asked first, which holds three hosts.
    """

    def boot(vm: str) -> int:
        start = int(vm[:8], 16) % len(hosts)
        order = [*hosts[start:], *hosts[:start]]
        if asks:
            held = hold(vm, order, project)
            if held is not None:
                order = sorted(order, key=lambda host: host.pk not in held.host_ids)
        for host in order:
            status = claim(vm, host, project)
            if status == 204:
                return status
        return status

    return boot


def burst(boot: Boot, count: int) -> Counter[int]:
    with Sessions(CLIENTS) as pool:
        return Counter(pool.map(boot, [uuid() for _ in range(count)]))


def rows_in_flight() -> int:
    return Reservation.objects.filter(kind=ReservationKind.IN_FLIGHT).count()


def delete_all() -> None:
    vms = [str(vm) for vm in Consumer.objects.values_list("uuid", flat=True)]

    def delete(vm: str) -> int:
        return PlacementClient(X_Roles="admin,service").delete(f"/allocations/{vm}").status

    with Sessions(CLIENTS) as pool:
        assert set(pool.map(delete, vms)) <= {204}


@pytest.mark.parametrize("asks", [False, True])
def test_48_boots_for_90_free_places_succeed(asks: bool) -> None:
    hosts = make_cloud(9, 10)
    assert burst(boot_anywhere(hosts, STRANGER, asks=asks), 48) == {204: 48}
    assert rows_in_flight() == 0
    assert_claims_are_the_ledger()
    delete_all()
    assert {room.allocated_memory_bytes for room in HostCapacity.objects.all()} == {0}


@pytest.mark.parametrize("asks", [False, True])
@pytest.mark.parametrize("project", [OWNER, STRANGER])
def test_100_boots_for_42_places_fill_exactly_these(project: str, asks: bool) -> None:
    """The owner holds half of 84 places, and may use all of its own beside the free ones."""
    hosts = make_cloud(6, 7 if project == OWNER else 14, held=3)
    answers = burst(boot_anywhere(hosts, project, asks=asks), 100)
    assert answers == {204: 42, 409: 58}
    assert rows_in_flight() == 0
    assert_claims_are_the_ledger()
    in_slots = ReservationAllocation.objects.filter(reservation__kind="committed").count()
    assert in_slots == (21 if project == OWNER else 0)
    delete_all()
    assert_claims_are_the_ledger()
    blocked = Reservation.objects.values_list("blocked_memory_bytes", "memory_bytes")
    assert all(now == full for now, full in blocked)


def test_workers_that_die_leave_whole_claims_and_no_holds() -> None:
    hosts = make_cloud(2, 4, held=1)
    vm, number = uuid(), 1

    def work() -> None:
        assert claim(vm, hosts[0], OWNER) == 204

    while not run_in_child(work, number):
        assert_claims_are_the_ledger()
        assert ReservationAllocation.objects.count() == Consumer.objects.count()
        if Consumer.objects.exists():
            break
        number += 1
    assert number > 1  # the claim is one statement
    assert_claims_are_the_ledger()


def test_claims_go_on_beside_workers_that_are_killed() -> None:
    hosts = make_cloud(6, 4, held=3)

    def worker(place: int) -> Callable[[], None]:
        def work() -> None:
            boot = boot_anywhere(hosts, OWNER, asks=False)
            for turn in range(4):
                boot(uuid())
                if place % 2 and turn == 1:
                    connection.ensure_connection()
                    os.kill(os.getpid(), signal.SIGKILL)

        return work

    finished = in_children([worker(place) for place in range(8)])
    assert finished.count(False) == 4
    assert_claims_are_the_ledger()
    delete_all()
    assert_claims_are_the_ledger()
    assert not ReservationAllocation.objects.exists()


@pytest.mark.parametrize("asks", [False, True])
def test_100_boots_fill_42_places_beside_workers_that_are_killed(asks: bool) -> None:
    """What a worker held for a VM that it did not live to claim is free by its time."""
    hosts = make_cloud(6, 7, held=3)
    boot = boot_anywhere(hosts, OWNER, asks=asks)

    def worker(dies: bool) -> Callable[[], None]:
        def work() -> None:
            for _ in range(2 if dies else 5):
                boot(uuid())
            if dies:
                connection.ensure_connection()
                if asks:
                    hold(uuid(), hosts, OWNER)
                os.kill(os.getpid(), signal.SIGKILL)

        return work

    finished = in_children([worker(place < 4) for place in range(10)])
    assert finished.count(False) == 4
    assert_claims_are_the_ledger()
    end_expired(timezone.now() + timedelta(hours=3))
    assert rows_in_flight() == 0
    granted = Consumer.objects.count()
    assert burst(boot, 62)[204] == 42 - granted
    assert rows_in_flight() == 0
    assert_claims_are_the_ledger()
    assert {room.allocated_memory_bytes for room in HostCapacity.objects.all()} == {7 * GIB}
    delete_all()
    assert_claims_are_the_ledger()
    assert not ReservationAllocation.objects.exists()


def test_a_flight_that_came_while_a_claim_waited_ends_with_it() -> None:
    here, there = make_cloud(2, 4)
    vm = uuid()

    with ThreadPoolExecutor(2) as pool:
        with transaction.atomic():
            HostCapacity.objects.select_for_update().get(host=here)
            answer = pool.submit(on_own_connection, partial(claim, vm, here, STRANGER))
            wait_for_a_blocked_session()
            assert pool.submit(on_own_connection, partial(hold, vm, [there], STRANGER)).result()
            assert rows_in_flight() == 1
        assert answer.result() == 204
    assert rows_in_flight() == 0
    assert_claims_are_the_ledger()


def make_evacuation() -> tuple[str, Host, Reservation]:
    """Make a VM whose host died, the only host that has room for it, and what is held there."""
    home, target = make_hosts(2, memory_gib=1, vcpus=1)
    rebuild_host_capacity()
    reconcile_hosts()
    vm = uuid()
    assert claim(vm, home, STRANGER) == 204
    user = make_vm(host=home, openstack_id=vm, memory_gib=1, vcpus=1, project_id=STRANGER)
    spare = make_failover_slot("spare", target, [user], memory_gib=1)
    Reservation.objects.filter(pk=spare.pk).update(vcpus=1, blocked_vcpus=1)
    rebuild_host_capacity()
    Host.objects.filter(pk=home.pk).update(state="down")
    return vm, target, spare


def evacuate(vm: str, target: Host) -> int:
    """Claim a second host for a VM, on a connection of its own."""

    def work() -> int:
        held = {host.openstack_id: ASKED for host in Host.objects.filter(state="down")}
        held |= {target.openstack_id: ASKED}
        client = PlacementClient(X_Roles="admin,service")
        return client.allocate(vm, held, project_id=STRANGER, generation=1).status

    return int(on_own_connection(work))


def test_an_evacuated_vm_waits_for_who_is_changing_its_failover_slot() -> None:
    vm, target, spare = make_evacuation()
    with ThreadPoolExecutor(1) as pool:
        with transaction.atomic():
            FailoverReservation.objects.filter(reservation=spare).update(version=7)
            answer = pool.submit(evacuate, vm, target)
            wait_for_a_blocked_session()
            with connection.cursor() as cursor:  # it waits with nothing locked
                cursor.execute("SELECT FROM capacity_hostcapacity FOR UPDATE NOWAIT")
        assert answer.result() == 204
    assert not Reservation.objects.filter(pk=spare.pk).exists()
    assert_claims_are_the_ledger()


def test_a_slot_that_is_being_changed_for_too_long_is_told_as_busy(settings: Any) -> None:
    settings.HEADROOM = settings.HEADROOM.model_copy(update={"lock_timeout_seconds": 0.2})
    vm, target, spare = make_evacuation()
    with ThreadPoolExecutor(1) as pool, transaction.atomic():
        FailoverReservation.objects.filter(reservation=spare).update(version=7)
        assert pool.submit(evacuate, vm, target).result() == 503
    assert evacuate(vm, target) == 204
