"""VMs move at every statement of whoever changes failover reservations: nobody waits in a circle.

A planner is stopped after each of the statements that take locks, one after the other. There
VMs are moved until that is done or has to wait, as an import does (VMs, then rooms) and as one does
that follows the ledger (rooms, then VMs). Then the planner goes on.

Source: spec failover, 18.7; style, 8 (lock order).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection, transaction
from django.utils import timezone

from capacity.ledger.rooms import lock_rooms, rebuild_host_capacity
from capacity.models import HostCapacity, Reservation, ReservationAllocation
from capacity.nova.pipelines import ensure_shipped_pipelines
from failover.drill_models import EvacuationPlan, ShadowPlan
from failover.models import (
    FailoverCooldown,
    FailoverPolicy,
    FailoverReservation,
    FailoverZone,
)
from failover.services.evacuation import plan_evacuations, settle_evacuations, start_move
from failover.services.loop import reconcile_zone
from failover.services.rebalancing import rebalance_zone
from failover.services.replanning import replan_vm
from failover.services.shadow_plans import compute_shadow_plan
from failover.services.validation import validate_zone
from hosts.models import Host, HostState, Instance
from journal.actors import Actor
from tests.domain.failover.oracle import five_rules_hold
from tests.factories import make_domain, make_project
from tests.failover.drill_rows import make_zone
from tests.failover.zones import flavor, hosts, plain_slots, require, run, vm
from tests.ledger import assert_ledger_holds
from tests.process_tables import reset_host_table

pytestmark = pytest.mark.django_db(transaction=True)

GIB = 1 << 30
MOST_STATEMENTS = 200
#: Statements that take locks in the shortest of the planners: a plan of one VM.
LEAST_STOPS = 3
ZONE_LOCK = "pg_advisory_xact_lock"
TAKES_LOCKS = (ZONE_LOCK, "failover_lock_", "UPDATE", "INSERT", "DELETE")
ACTOR = Actor(name="test")

Step = Callable[[], Any]  # Any: what the planner returns


class Mover(threading.Thread):
    """Moves VMs in one transaction on a connection of its own.

    It keeps that open until session ``keeps_for`` waits for it, if one is given.
    """

    def __init__(
        self, moves: Sequence[tuple[str, str]], *, rooms_first: bool, keeps_for: int = 0
    ) -> None:
        super().__init__()
        self._moves, self._rooms_first, self._keeps_for = moves, rooms_first, keeps_for
        self.has_moved = threading.Event()
        self.pid = 0
        self.error: BaseException | None = None
        self.is_connected = threading.Event()
        self.is_over = threading.Event()

    def run(self) -> None:
        try:
            with connection.cursor() as cursor:
                cursor.execute("SELECT pg_backend_pid()")
                self.pid = cursor.fetchone()[0]
            self.is_connected.set()
            self._move()
        except BaseException as error:  # noqa: BLE001 - the test looks at it
            self.error = error
        finally:
            self.has_moved.set()
            self.is_connected.set()
            self.is_over.set()
            connection.close()

    def _move(self) -> None:
        ids = dict(Host.objects.values_list("name", "pk"))
        before = Instance.objects.filter(openstack_id__in=[uuid for uuid, _ in self._moves])
        rooms = {key for key in before.values_list("host_id", flat=True) if key is not None}
        rooms |= {ids[target] for _, target in self._moves}
        with transaction.atomic():
            if self._rooms_first:
                lock_rooms(rooms)
            for uuid, target in self._moves:
                Instance.objects.filter(openstack_id=uuid).update(host_id=ids[target])
            rebuild_host_capacity(sorted(rooms))
            self.has_moved.set()
            if self._keeps_for:
                with connection.cursor() as cursor:
                    while not waits(cursor, self._keeps_for):
                        pass


@contextmanager
def moving_before(number: int, mover: Mover) -> Iterator[list[int]]:
    """Start the mover after the lock ``number`` under the zone lock; wait until it has to wait.

    Yields:
        How many statements took locks so far, in the only element.
    """
    seen = [0]
    has_lock = took_more = False

    def wrapper(execute: Callable[..., Any], sql: str, *arguments: Any) -> Any:
        nonlocal has_lock, took_more
        if took_more and connection.in_atomic_block:
            seen[0] += 1
            if seen[0] == number:
                mover.start()
                wait_until_it_waits(mover)
        has_lock = connection.in_atomic_block and (has_lock or ZONE_LOCK in sql)
        took_more = has_lock and any(word in sql for word in TAKES_LOCKS)
        return execute(sql, *arguments)

    with connection.execute_wrapper(wrapper):
        yield seen
    if number <= seen[0]:
        mover.join()


def wait_until_it_waits(mover: Mover) -> None:
    mover.is_connected.wait()
    looking = connection.copy()
    try:
        with looking.cursor() as cursor:
            while not mover.is_over.wait(0.001):
                if waits(cursor, mover.pid):
                    return
    finally:
        looking.close()


def waits(cursor: Any, pid: int) -> bool:
    cursor.execute("SELECT cardinality(pg_blocking_pids(%s)) > 0", [pid])
    return bool(cursor.fetchone()[0])


def forget_everything() -> None:
    """Delete the rows of the last round; emptying all tables of a database takes a second."""
    for model in (
        ReservationAllocation,
        EvacuationPlan,
        Reservation,
        Instance,
        HostCapacity,
        Host,
        FailoverPolicy,
        FailoverCooldown,
        FailoverZone,
        ShadowPlan,
    ):
        model.objects.all().delete()
    reset_host_table()


def reservations_of_hosts() -> None:
    """Six VMs on hosts 0 to 5 of eight, each in two reservations; VMs 0 and 1 share some."""
    hosts(" ".join(f"h{number}" for number in range(8)), vcpus=64, gib=24)
    kind = flavor("m1.small", vcpus=1, gib=1)
    for number in range(6):
        vm(f"vm{number}@h{number}", of=kind)
    require(**{"m1.*": 2})
    run()


def due_validation() -> Step:
    reservations_of_hosts()
    due = timezone.now() - timedelta(seconds=1)
    FailoverReservation.objects.update(next_validation_at=due)
    return lambda: validate_zone("az-a", request_id="r")


def failing_validation() -> Step:
    work = due_validation()
    Instance.objects.filter(openstack_id__in=["vm2", "vm3"]).update(memory_bytes=8 * GIB)
    return work


def covering_loop() -> Step:
    reservations_of_hosts()
    for number in range(4):
        vm(f"new{number}@h{number}", of=flavor("m1.small"))
    return lambda: reconcile_zone("az-a", request_id="r")


def cleaning_loop() -> Step:
    reservations_of_hosts()
    Instance.objects.filter(openstack_id="vm2").delete()
    Instance.objects.filter(openstack_id="vm3").update(flavor_name="other")
    return lambda: reconcile_zone("az-a", request_id="r")


def single_replan() -> Step:
    reservations_of_hosts()
    vm("new@h7", of=flavor("m1.small"))
    return lambda: replan_vm("new", request_id="r")


def rebalancing() -> Step:
    rows = make_zone("r1@7{a@1} r2@8{b@2} r3@9{c@3} r4@10{d@4}", hosts=["6"], required=1)
    rename({row.openstack_id: name for name, row in rows.vms.items()})
    compute_shadow_plan("az-a", request_id="r", now=timezone.now())
    now = timezone.now()
    return lambda: rebalance_zone("az-a", actor=ACTOR, request_id="r", now=now, most_steps=2)


def arriving_evacuation() -> Step:
    rows = make_zone("rA@3{a@1,b@2} rB@4{a@1} rC@5{b@2}", hosts=["6", "7"])
    rename({row.openstack_id: name for name, row in rows.vms.items()})
    Host.objects.filter(name="h1").update(state=HostState.DOWN)
    plan_evacuations(actor=ACTOR, request_id="r", now=timezone.now())
    target = start_move("vm0", now=timezone.now())
    Instance.objects.filter(openstack_id="vm0").update(host=Host.objects.get(name=target))
    rebuild_host_capacity()
    return lambda: settle_evacuations(actor=ACTOR, request_id="r", now=timezone.now())


def starting_evacuation() -> Step:
    rows = make_zone("rA@3{a@1,b@2} rB@4{a@1} rC@5{b@2}", hosts=["6", "7"])
    rename({row.openstack_id: name for name, row in rows.vms.items()})
    Host.objects.filter(name__in=["h1", "h2"]).update(state=HostState.DOWN)
    return lambda: plan_evacuations(actor=ACTOR, request_id="r", now=timezone.now())


def rename(names: dict[str, str]) -> None:
    """Call VMs a, b, ... ``vm0``, ``vm1``, ... wherever they are known."""
    with connection.cursor() as cursor:
        for uuid, name in names.items():
            new = f"vm{ord(name) - ord('a')}"
            for table, column in (
                ("capacity_reservationallocation", "vm_uuid"),
                ("hosts_instance", "openstack_id"),
            ):
                cursor.execute(f"UPDATE {table} SET {column} = %s WHERE {column} = %s", [new, uuid])  # noqa: S608


@pytest.mark.parametrize(
    ("scenario", "rooms_first"),
    [
        (due_validation, False),
        (failing_validation, False),
        (failing_validation, True),
        (covering_loop, False),
        (cleaning_loop, True),
        (single_replan, False),
        (rebalancing, False),
        (rebalancing, True),
        (starting_evacuation, False),
        (arriving_evacuation, False),
        (arriving_evacuation, True),
    ],
    ids=lambda one: one.__name__ if callable(one) else ("rooms_first" if one else "vms_first"),
)
def test_no_planner_and_moving_vms_wait_for_each_other(
    scenario: Callable[[], Step], *, rooms_first: bool
) -> None:
    ensure_shipped_pipelines(request_id="test")
    make_domain()
    make_project()
    stopped = 0
    for number in range(1, MOST_STATEMENTS):
        forget_everything()
        work = scenario()
        mover = Mover([("vm1", "h6"), ("vm0", "h7")], rooms_first=rooms_first)
        with moving_before(number, mover) as seen:
            work()
        assert mover.error is None
        assert five_rules_hold(plain_slots())
        assert_ledger_holds()
        if number > seen[0]:
            break
        stopped += 1
    assert stopped >= LEAST_STOPS


def test_plan_of_an_evacuation_waits_for_a_vm_that_is_leaving_a_slot() -> None:
    ensure_shipped_pipelines(request_id="test")
    make_domain()
    make_project()
    work = starting_evacuation()
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        mover = Mover([("vm1", "h6")], rooms_first=False, keeps_for=cursor.fetchone()[0])
    mover.start()
    mover.has_moved.wait()
    (outcome,) = work()
    mover.join()
    assert mover.error is None
    assert (outcome.zone, outcome.planned) == ("az-a", 2)
    assert_ledger_holds()
