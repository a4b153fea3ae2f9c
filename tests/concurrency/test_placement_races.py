from __future__ import annotations

import random
from collections import Counter
from datetime import timedelta

import pytest
from django.utils import timezone

from capacity.ledger.rooms import rebuild_host_capacity
from capacity.models import HostCapacity, Reservation, ReservationAllocation, ReservationKind
from capacity.nova.in_flight import InFlightAsk, InFlightHold, after_vm_changes, end_expired
from capacity.nova.placement import place_vm
from hosts.models import Host
from journal.actors import Actor
from journal.errors import Busy
from scheduling.resources import GIB, ResourceVector
from tests.commitments.change_requests import RAM, change, change_some, decide
from tests.concurrency.at_once import Sessions
from tests.factories import make_commitment, make_group, make_hosts, make_slot, make_vm
from tests.killing import run_in_child
from tests.ledger import assert_ledger_holds, end_placement, expect_in_slot

pytestmark = pytest.mark.django_db(transaction=True)

ACTOR = Actor(name="nova")
VM_CLIENTS, SLOT_CLIENTS = 16, 4
PLACEMENTS, CHANGES = 160, 40
HOSTS = 10


def gib(amount: int) -> ResourceVector:
    return ResourceVector(memory_bytes=amount * GIB, vcpus=amount)


def place(vm: str, hosts: list[str], size: int = 1, max_held: int = 3) -> tuple[str, ...]:
    ask = InFlightAsk(vm_uuid=vm, resources=gib(size), intent="create", project_id="payg")
    return place_vm(ask, candidates=hosts, actor=ACTOR, request_id="race", max_held=max_held).held


def test_16_clients_placing_vms_and_4_placing_slots_never_book_twice() -> None:
    make_group("hana_1", flavors=[("small", 1024, 1), ("large", 4096, 4)])
    hosts = make_hosts(HOSTS, memory_gib=8, vcpus=8)
    for host in hosts:
        make_vm(host=host, memory_gib=2, vcpus=2)
    answers: Counter[str] = Counter()

    def fire_vm(number: int) -> str:
        rng = random.Random(number)  # noqa: S311 - a reproducible load, nothing secret
        names = rng.sample([host.name for host in hosts], k=5)
        try:
            held = place(f"vm-{number % 60}", names, size=rng.randint(1, 3))
        except Busy:
            return "busy"
        if held and rng.random() < 0.3:
            end_placement(f"vm-{number % 60}")
        return "placed" if held else "no host"

    with Sessions(VM_CLIENTS) as vms, Sessions(SLOT_CLIENTS) as slots:
        placed = vms.map(fire_vm, range(PLACEMENTS))
        changed = slots.map(change_some, range(CHANGES))
        answers.update(placed)
        answers.update(changed)

    assert answers["placed"] > 0
    assert answers["accepted"] > 0
    assert answers["no host"] + answers["rejected"] > 0, answers
    assert_ledger_holds()
    assert rebuild_host_capacity() == 0
    assert_every_row_ends()


def assert_every_row_ends() -> None:
    """Half of the VMs appear on a held host, the rest never does."""
    flying = Reservation.objects.filter(kind=ReservationKind.IN_FLIGHT)
    vms = sorted(set(flying.values_list("vm_uuid", flat=True)))
    assert vms
    for vm in vms[::2]:
        row = flying.filter(vm_uuid=vm).order_by("pk").first()
        assert row is not None
        make_vm(
            vm,
            row.target_host,
            openstack_id=vm,
            memory_gib=row.memory_bytes // GIB,
            vcpus=row.vcpus,
        )
    rebuild_host_capacity()
    after_vm_changes()
    assert set(flying.values_list("vm_uuid", flat=True)) == set(vms[1::2])
    end_expired(timezone.now() + timedelta(minutes=16))
    assert not flying.exists()
    assert_ledger_holds()
    assert rebuild_host_capacity() == 0


def test_50_placements_into_room_for_20_give_exactly_20() -> None:
    hosts = [host.name for host in make_hosts(5, memory_gib=4, vcpus=4)]

    def fire(number: int) -> bool:
        rotated = hosts[number % 5 :] + hosts[: number % 5]
        return bool(place(f"vm-{number}", rotated, max_held=1))

    with Sessions(VM_CLIENTS) as pool:
        answers = list(pool.map(fire, range(50)))
    assert sum(answers) == 20
    assert_ledger_holds()


def test_simultaneous_retries_of_one_vm_leave_the_rows_of_one_placement() -> None:
    hosts = [host.name for host in make_hosts(6, memory_gib=4, vcpus=4)]

    def fire(number: int) -> bool:
        rotated = hosts[number % 6 :] + hosts[: number % 6]
        return bool(place("vm-1", rotated, size=4, max_held=2))

    with Sessions(8) as pool:
        answers = list(pool.map(fire, range(24)))
    assert all(answers)
    rows = Reservation.objects.filter(kind=ReservationKind.IN_FLIGHT)
    assert rows.count() == 2
    assert len(set(rows.values_list("placement_id", flat=True))) == 1
    assert_ledger_holds()


def test_one_slot_is_booked_by_as_many_vms_as_fit_while_its_commitment_changes() -> None:
    make_group("hana_1", flavors=[("small", 1024, 1)])
    make_hosts(2, memory_gib=8, vcpus=8)
    uuid = "bbbbbbbb-0000-4000-8000-000000000001"
    assert not decide({"project-1": {RAM: [change(uuid, 4)]}}).rejection_reason

    def book(hold: InFlightHold) -> None:
        slots = Reservation.objects.filter(
            kind=ReservationKind.COMMITTED, target_host_id=hold.host_ids[0]
        ).order_by("pk")
        for slot_id in slots.values_list("pk", flat=True):
            if expect_in_slot(slot_id, hold.vm_uuid, hold.resources, now=timezone.now()) == (
                "booked"
            ):
                return

    def fire(number: int) -> str:
        if number % 4 == 0:
            try:
                decide({"project-1": {RAM: [change(uuid, 1 + number % 5)]}})
            except Busy:
                return "busy"
            return "changed"
        ask = InFlightAsk(
            vm_uuid=f"vm-{number}",
            resources=gib(1),
            intent="create",
            project_id="project-1",
            flavor_group_name="hana_1",
        )
        try:
            outcome = place_vm(
                ask,
                candidates=("h1", "h2"),
                actor=ACTOR,
                request_id="race",
                max_held=1,
                book=book,
            )
        except Busy:
            return "busy"
        return "placed" if outcome.held else "no host"

    with Sessions(8) as pool:
        answers = Counter(pool.map(fire, range(48)))
    assert answers["placed"] > 0
    assert answers["changed"] > 0
    booked = Counter(ReservationAllocation.objects.values_list("reservation_id", flat=True))
    for slot in Reservation.objects.filter(kind=ReservationKind.COMMITTED):
        assert booked[slot.pk] * GIB <= slot.memory_bytes
    assert rebuild_host_capacity() == 0


def state_of_everything() -> tuple[object, ...]:
    rooms = HostCapacity.objects.order_by("host__name")
    return (
        sorted(Reservation.objects.values_list("kind", "vm_uuid", "target_host__name", "intent")),
        sorted(Reservation.objects.values_list("kind", "blocked_memory_bytes")),
        sorted(ReservationAllocation.objects.values_list("vm_uuid", "state")),
        list(rooms.values_list("committed_memory_bytes", "in_flight_memory_bytes")),
    )


def test_killed_placement_leaves_the_whole_placement_or_nothing() -> None:
    make_group("hana_1")
    hosts: list[Host] = make_hosts(3, memory_gib=16, vcpus=16)
    slot = make_slot(make_commitment(), hosts[1], memory_gib=4, vcpus=1)
    place("vm-1", ["h1", "h2"], size=6)

    def book(hold: InFlightHold) -> None:
        expect_in_slot(slot.pk, hold.vm_uuid, hold.resources, now=timezone.now())

    def work() -> None:
        ask = InFlightAsk(vm_uuid="vm-1", resources=gib(6), intent="evacuate")
        held = place_vm(
            ask, candidates=("h2", "h3"), actor=ACTOR, request_id="killed", book=book
        ).held
        assert held == ("h2", "h3")

    before = state_of_everything()
    states = [before]
    for number in range(1, 100):
        has_finished = run_in_child(work, number)
        states.append(state_of_everything())
        assert rebuild_host_capacity() == 0
        if has_finished:
            break
    after = states[-1]
    assert len(states) > 10
    assert after != before
    first_after = states.index(after)
    assert all(state == before for state in states[:first_after])
    assert all(state == after for state in states[first_after:])


def test_killed_expiry_leaves_whole_batches_and_the_next_run_finishes() -> None:
    make_group("hana_1")
    hosts = make_hosts(2, memory_gib=16, vcpus=16)
    slot = make_slot(make_commitment(), hosts[0], memory_gib=4, vcpus=1)
    for number in range(3):
        place(f"vm-{number}", ["h1", "h2"], size=2)
    expect_in_slot(slot.pk, "vm-1", gib(6), now=timezone.now())
    late = timezone.now() + timedelta(hours=1)

    def work() -> None:
        end_expired(late)

    for number in range(1, 100):
        has_finished = run_in_child(work, number)
        assert rebuild_host_capacity() == 0
        if has_finished:
            break
    assert not Reservation.objects.filter(kind=ReservationKind.IN_FLIGHT).exists()
    slot.refresh_from_db()
    assert slot.blocked_memory_bytes == 6 * GIB
