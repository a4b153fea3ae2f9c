"""The failover loop among other writers, and killed anywhere: rules hold and the next run finishes.

Source: spec failover, 17.3, 18.7.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from datetime import timedelta

import pytest
from django.db import connection, connections, transaction
from django.utils import timezone

from capacity.ledger.rooms import lock_rooms, rebuild_host_capacity
from capacity.models import HostCapacity, Reservation, ReservationAllocation
from capacity.nova.in_flight import InFlightAsk
from capacity.nova.placement import place_vm
from failover.models import FailoverDecision, FailoverReservation, FailoverRun
from failover.services import apply
from failover.services.apply import StepRefusedError
from failover.services.loop import reconcile_zone
from failover.services.replanning import replan_vm
from failover.services.validation import validate_zone
from hosts.models import Host, Instance
from journal.actors import Actor
from journal.errors import Busy
from journal.models import Lease
from scheduling.resources import ResourceVector
from tests.commitments.change_requests import RAM, change, decide
from tests.domain.failover.oracle import five_rules_hold
from tests.factories import make_group
from tests.failover.zones import (
    assert_sound,
    cover,
    flavor,
    hosts,
    plain_slots,
    require,
    state,
    vm,
)
from tests.killing import die_at_statement, run_in_child
from tests.ledger import assert_ledger_holds

pytestmark = pytest.mark.django_db(transaction=True)

GIB = 1 << 30
ZONES = ("az-a", "az-b")
HOSTS_PER_ZONE = 8
MOST_STATEMENTS = 400


@pytest.fixture(autouse=True)
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make steps of a few users, so that a run has many."""
    monkeypatch.setattr(apply, "USERS_PER_STEP", 3)
    monkeypatch.setattr(apply, "ROWS_PER_STEP", 2)


def build_zones() -> None:
    make_group("hana_1", flavors=[("small", 1024, 1)])
    kind = flavor("m1.small", vcpus=1, gib=1)
    for zone in ZONES:
        names = [f"{zone}-h{number}" for number in range(HOSTS_PER_ZONE)]
        hosts(" ".join(names), zone=zone, vcpus=64, gib=24)
        for number, name in enumerate(names[:-2]):
            vm(f"{zone}-vm{number}@{name}", of=kind)
    require(**{"m1.*": 2})


def assert_nothing_is_broken() -> None:
    """What must hold whenever anybody looks."""
    assert five_rules_hold(plain_slots())
    assert_ledger_holds()
    held = set(Reservation.objects.filter(kind="failover").values_list("pk", flat=True))
    assert held == set(FailoverReservation.objects.values_list("reservation_id", flat=True))


def finish() -> None:
    """Run the loops until they have nothing to do."""
    for _ in range(3):
        for zone in ZONES:
            reconcile_zone(zone, request_id="finish")


def assert_everything_is_covered() -> None:
    listed = Instance.objects.filter(flavor_name="m1.small").values_list("openstack_id", flat=True)
    have = cover()
    short = set(FailoverDecision.objects.values_list("vm_uuid", flat=True))
    assert {uuid for uuid in listed if have.get(uuid, 0) != 2} == short == set()
    users = ReservationAllocation.objects.filter(reservation__kind="failover")
    assert set(users.values_list("vm_uuid", flat=True)) == set(listed)
    empty = Reservation.objects.filter(kind="failover", allocations__isnull=True)
    assert not empty.exists()


def test_loop_killed_at_any_statement_leaves_whole_steps_and_the_next_run_finishes() -> None:
    build_zones()
    finished = False
    for number in range(1, MOST_STATEMENTS, 7):
        finished = run_in_child(lambda: void(reconcile_zone("az-a", request_id="r")), number)
        assert_nothing_is_broken()
        if finished:
            break
    assert finished
    died = FailoverRun.objects.filter(error_code="died").count()
    assert died > 2
    finish()
    assert_everything_is_covered()
    assert_sound()


def test_cleaning_killed_at_any_statement_is_finished_by_the_next_run() -> None:
    build_zones()
    finish()
    moved = Instance.objects.filter(openstack_id__in=["az-a-vm0", "az-a-vm1", "az-a-vm2"])
    moved.update(flavor_name="other", memory_bytes=8 * GIB)
    Instance.objects.filter(openstack_id="az-a-vm4").delete()
    for number in range(1, MOST_STATEMENTS, 5):
        if run_in_child(lambda: void(reconcile_zone("az-a", request_id="r")), number):
            break
        assert_nothing_is_broken()
    finish()
    assert_everything_is_covered()


def void(_: object) -> None:
    """Drop a result."""


def start_child(work: Callable[[], None], die_at: int) -> int:
    """Start work in a process of its own that may die at a statement; return its id."""
    connections.close_all()
    child = os.fork()
    if child:
        return child
    try:
        with connection.execute_wrapper(die_at_statement(die_at)):
            work()
    except (Busy, StepRefusedError):
        os._exit(0)
    except BaseException:  # noqa: BLE001 - the child must never return into the test runner
        traceback.print_exc(file=sys.stderr)
        os._exit(1)
    os._exit(0)


def wait_for(children: Sequence[int]) -> int:
    """Wait for processes; return how many were killed."""
    killed = 0
    for child in children:
        _, status = os.waitpid(child, 0)
        if os.WIFSIGNALED(status):
            assert os.WTERMSIG(status) == signal.SIGKILL
            killed += 1
        else:
            assert os.WEXITSTATUS(status) == 0, "a writer failed by itself"
    Lease.objects.all().delete()  # as after the time in which nobody renewed them
    return killed


def loop(zone: str) -> Callable[[], None]:
    def work() -> None:
        for _ in range(2):
            reconcile_zone(zone, request_id="loop")
        FailoverReservation.objects.filter(reservation__zone=zone).update(
            next_validation_at=timezone.now() - timedelta(seconds=1)
        )
        validate_zone(zone, request_id="validate")

    return work


def commit_capacity(number: int, amount: int) -> Callable[[], None]:
    def work() -> None:
        for step in range(4):
            asked = {"alpha": {RAM: [change(f"{number:04d}{step:04d}-0000", amount)]}}
            decide(asked, zone=ZONES[step % len(ZONES)])

    return work


def place_vms(seed: int) -> Callable[[], None]:
    def work() -> None:
        draw = random.Random(seed)  # noqa: S311 - a test
        names = [f"{zone}-h{number}" for zone in ZONES for number in range(HOSTS_PER_ZONE)]
        for number in range(6):
            place_vm(
                InFlightAsk(
                    vm_uuid=f"flight-{seed}-{number}",
                    resources=ResourceVector(memory_bytes=GIB, vcpus=1),
                    intent="create",
                ),
                candidates=draw.sample(names, 3),
                actor=Actor(name="nova"),
                request_id="place",
                max_held=1,
            )

    return work


def move_vms(seed: int) -> Callable[[], None]:
    def work() -> None:
        draw = random.Random(seed)  # noqa: S311 - a test
        for zone in ZONES:
            row = Instance.objects.get(openstack_id=f"{zone}-vm{draw.randrange(6)}")
            target = Host.objects.get(name=f"{zone}-h{draw.randrange(HOSTS_PER_ZONE)}")
            with transaction.atomic():
                lock_rooms(key for key in {row.host_id, target.pk} if key is not None)
                room = HostCapacity.objects.select_for_update(no_key=True).get(host=target)
                free = (
                    room.effective_memory_bytes
                    - room.allocated_memory_bytes
                    - room.committed_memory_bytes
                    - room.failover_memory_bytes
                    - room.in_flight_memory_bytes
                )
                if free < 2 * GIB or row.host_id == target.pk:
                    continue
                before = row.host_id
                Instance.objects.filter(pk=row.pk).update(host=target)
                rebuild_host_capacity([key for key in (before, target.pk) if key is not None])

    return work


def replan(zone: str, seed: int) -> Callable[[], None]:
    def work() -> None:
        draw = random.Random(seed)  # noqa: S311 - a test
        for _ in range(4):
            replan_vm(f"{zone}-vm{draw.randrange(6)}", request_id="replan")

    return work


def test_replan_killed_at_any_statement_leaves_whole_steps_and_the_next_one_finishes() -> None:
    build_zones()
    finished = False
    for number in range(1, MOST_STATEMENTS, 3):
        finished = run_in_child(lambda: void(replan_vm("az-a-vm0", request_id="r")), number)
        assert_nothing_is_broken()
        if finished:
            break
    assert finished
    assert cover()["az-a-vm0"] == 2
    assert_sound()
    before = {name: users for name, (_, users) in state().items() if "az-a-vm0" in users}
    finish()
    after = {name: users for name, (_, users) in state().items() if "az-a-vm0" in users}
    assert set(after) == set(before)
    assert_everything_is_covered()


@pytest.mark.parametrize("seed", [1, 2])
def test_replans_of_single_vms_beside_the_loop_and_moves(seed: int) -> None:
    build_zones()
    for turn in range(3):
        writers = [
            *(loop(zone) for zone in ZONES),
            *(replan(zone, seed * 10 + turn) for zone in ZONES),
            *(replan(zone, seed * 100 + turn) for zone in ZONES),
            move_vms(seed * 100 + turn),
        ]
        wait_for([start_child(work, 10_000) for work in writers])
        assert_nothing_is_broken()
    finish()
    assert_everything_is_covered()


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_loops_among_commitments_placements_and_moves_killed_at_random(seed: int) -> None:
    build_zones()
    draw = random.Random(seed)  # noqa: S311 - a test
    killed = 0
    for turn in range(3):
        writers = [
            *(loop(zone) for zone in ZONES),
            *(loop(zone) for zone in ZONES),
            commit_capacity(seed * 100 + turn * 10, draw.randrange(1, 6)),
            place_vms(seed * 100 + turn),
            move_vms(seed * 100 + turn),
            replan("az-a", seed * 100 + turn),
        ]
        children = [start_child(work, draw.randrange(5, 260)) for work in writers]
        killed += wait_for(children)
        assert_nothing_is_broken()
    assert killed
    finish()
    assert_nothing_is_broken()
    assert_everything_is_covered()
