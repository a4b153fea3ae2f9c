from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
from django.db import IntegrityError, connections, transaction
from django.utils import timezone

from capacity.ledger.rooms import rebuild_host_capacity
from capacity.locks import zone_lock
from capacity.models import HostCapacity, Reservation, ReservationAllocation
from capacity.nova.pipelines import ensure_shipped_pipelines
from failover.domain import covering
from failover.domain.drill import DrillResult, DrillVerificationError, simulate
from failover.domain.drill_state import DrillState
from failover.domain.plan import ZonePlan
from failover.drill_models import EvacuationMove, EvacuationPlan, EvacuationState, MoveState
from failover.hooks_scheduling import PlannedEvacuations
from failover.models import FailoverPolicy, FailoverReservation
from failover.services import evacuation, loop
from failover.services.evacuation import (
    BACK_GRACE,
    START_LIMIT,
    plan_evacuation,
    plan_evacuations,
    settle_evacuations,
    start_move,
    zones_to_plan,
)
from failover.services.validation import validate_zone
from hosts.models import Host, HostState, Instance
from journal.actors import Actor
from journal.clock import TOLERANCE
from journal.models import AuditEntry
from scheduling.resources import GIB
from tests.api.scheduler_client import NovaClient
from tests.factories import make_flavor, make_project
from tests.failover.drill_rows import ZoneRows, make_zone
from tests.hosts.agents.agents import fence_host

pytestmark = pytest.mark.django_db(transaction=True)
ACTOR = Actor(name="test")
DAY = timedelta(days=1)
S3 = "rA@3{a@1,b@2} rB@4{a@1} rC@5{b@2}"
S7 = "rA@3{a@1,b@2} rB@4{a@1,c@5} rC@6{b@2,c@5}"


def fail(rows: ZoneRows, *numbers: str, state: str = HostState.DOWN) -> None:
    names = [f"h{number}" for number in numbers]
    Host.objects.filter(name__in=names).update(state=state)


def plan(now: Any = None) -> None:
    plan_evacuations(actor=ACTOR, request_id="test", now=now or timezone.now())


def settle(now: Any = None) -> dict[str, int]:
    return settle_evacuations(actor=ACTOR, request_id="test", now=now or timezone.now())


def moves(rows: ZoneRows) -> dict[str, tuple[str, str]]:
    """Return VM name -> (state, slot)."""
    names = {vm.openstack_id: name for name, vm in rows.vms.items()}
    return {
        names[move.vm_uuid]: (move.state, move.reservation_name)
        for move in EvacuationMove.objects.all()
    }


def states() -> dict[str, str]:
    return dict(FailoverReservation.objects.values_list("name", "state"))


def arrive(rows: ZoneRows, vm: str, number: str) -> None:
    """Let the VM list say that a VM runs on another host, as an import does."""
    Instance.objects.filter(pk=rows.vms[vm].pk).update(
        host=rows.hosts[number], host_name=f"h{number}"
    )
    rebuild_host_capacity()


def room_gib(number: str) -> tuple[int, int]:
    """Return (allocated, blocked for failover) of a host in GiB."""
    row = HostCapacity.objects.get(host__name=f"h{number}")
    return row.allocated_memory_bytes // GIB, row.failover_memory_bytes // GIB


@pytest.mark.parametrize(
    ("slots", "failed", "planned"),
    [
        pytest.param("rA@3{a@1,b@2}", "1", {"a": "rA"}, id="S1"),
        pytest.param(S3, "1 2", {"a": "rB", "b": "rC"}, id="S3"),
        pytest.param(S3, "1 3", {"a": "rB"}, id="S4"),
        pytest.param(S3, "1 4", {"a": "rA"}, id="S5"),
        pytest.param(S7, "1 2", {"a": "rB", "b": "rC"}, id="S7"),
    ],
)
def test_plan_of_dead_hosts_is_the_drill_of_the_specification(
    slots: str, failed: str, planned: dict[str, str]
) -> None:
    rows = make_zone(slots)
    fail(rows, *failed.split())

    plan()

    assert moves(rows) == {name: (MoveState.PLANNED, slot) for name, slot in planned.items()}
    assert {name for name, state in states().items() if state == "consuming"} == set(
        planned.values()
    )
    entry = AuditEntry.objects.get(action="evacuation_planned")
    assert (entry.after or {})["planned"] == len(planned)


def test_nothing_is_planned_while_hosts_live() -> None:
    make_zone(S3)

    plan()

    assert not EvacuationPlan.objects.exists()
    assert set(states().values()) == {"active"}


def test_a_fenced_host_is_planned_for_like_a_dead_one() -> None:
    rows = make_zone(S3)
    fence_host("h1")
    fence_host("h3")

    assert zones_to_plan() == ["az-a"]
    plan()

    assert moves(rows) == {"a": (MoveState.PLANNED, "rB")}
    later = timezone.now() + DAY
    assert settle(later) == {}, "its list calls it up, but it is fenced still"
    Host.objects.update(fenced_since=None)
    assert settle(later) == {"dropped": 1}
    assert states() == dict.fromkeys(("rA", "rB", "rC"), "active")


def test_the_target_of_a_move_that_is_fenced_takes_no_vm() -> None:
    rows = make_zone(S3)
    fail(rows, "1")
    plan()
    assert moves(rows) == {"a": (MoveState.PLANNED, "rA")}

    fence_host("h3")

    assert zones_to_plan() == ["az-a"]
    assert start_move(rows.uuid("a"), now=timezone.now()) == ""
    plan_evacuation("az-a", actor=ACTOR, request_id="test", now=timezone.now())
    assert moves(rows) == {"a": (MoveState.PLANNED, "rB")}


def test_reservations_on_a_fenced_host_are_looked_at_anew() -> None:
    make_zone(S3)
    later = timezone.now() + DAY
    FailoverReservation.objects.update(next_validation_at=later)

    fence_host("h3")

    due = FailoverReservation.objects.filter(next_validation_at__lt=later)
    assert [row.name for row in due] == ["rA"]


def test_zone_is_planned_once() -> None:
    rows = make_zone(S3)
    fail(rows, "1")

    plan()
    assert zones_to_plan() == []
    plan()

    assert AuditEntry.objects.filter(action="evacuation_planned").count() == 1


@contextmanager
def zone_that_others_hold(zone: str) -> Iterator[None]:
    has_it, may_go = threading.Event(), threading.Event()

    def hold() -> None:
        try:
            with transaction.atomic():
                zone_lock([zone])
                has_it.set()
                may_go.wait(30)
        finally:
            connections.close_all()

    holder = threading.Thread(target=hold)
    holder.start()
    assert has_it.wait(30)
    try:
        yield
    finally:
        may_go.set()
        holder.join()


def test_zone_that_others_hold_does_not_stop_the_other_zones(settings: Any) -> None:
    settings.HEADROOM = settings.HEADROOM.model_copy(update={"lock_timeout_seconds": 0.1})
    make_zone("rA@3{a@1}", required=1)
    free = make_zone("rB@8{b@6}", zone="az-b", required=1)
    Host.objects.filter(name__in=["h1", "h6"]).update(state=HostState.DOWN)

    with zone_that_others_hold("az-a"):
        plan()
        assert [row.zone for row in EvacuationPlan.objects.all()] == ["az-b"]
    plan()
    assert EvacuationPlan.objects.count() == 2

    Instance.objects.filter(pk=free.vms["b"].pk).delete()
    with zone_that_others_hold("az-a"):
        assert settle() == {"dropped": 1}


def test_zone_whose_plan_cannot_be_carried_out_does_not_stop_the_other_zones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    make_zone("rA@3{a@1}", required=1)
    make_zone("rB@8{b@6}", zone="az-b", required=1)
    fail(ZoneRows(), "1", "6")

    def checked(state: DrillState, failed: Collection[str], **more: Any) -> DrillResult:
        if "h1" in failed:
            raise DrillVerificationError("slot rA of VM a is used twice")
        return simulate(state, failed, **more)

    monkeypatch.setattr(evacuation, "simulate", checked)
    plan()
    assert [row.zone for row in EvacuationPlan.objects.all()] == ["az-b"]
    monkeypatch.undo()
    plan()
    assert EvacuationPlan.objects.filter(zone="az-a").exists()


def test_vm_without_a_slot_is_listed_with_the_reason() -> None:
    rows = make_zone("r@3{a@1}", vms={"b": "1"}, hosts=("9",))
    fail(rows, "1", "3")

    plan()

    assert {move.vm_uuid: (move.state, move.reason) for move in EvacuationMove.objects.all()} == {
        rows.uuid("a"): (MoveState.UNPROTECTED, "all_slot_hosts_failed"),
        rows.uuid("b"): (MoveState.UNPROTECTED, "no_slots"),
    }


def test_further_dead_host_joins_the_plan_and_started_moves_stay() -> None:
    rows = make_zone(S7)
    fail(rows, "1")
    plan()
    before = moves(rows)["a"][1]
    assert start_move(rows.uuid("a"), now=timezone.now())
    fail(rows, "2", "5")

    plan()

    after = moves(rows)
    assert after["a"] == (MoveState.STARTED, before)
    assert {name: state for name, (state, _) in after.items()} == {
        "a": MoveState.STARTED,
        "b": MoveState.PLANNED,
        "c": MoveState.PLANNED,
    }
    assert len({slot for _, slot in after.values()}) == 3
    assert EvacuationPlan.objects.get().failed_hosts == ["h1", "h2", "h5"]


def test_waiting_move_is_planned_anew_when_its_target_dies() -> None:
    rows = make_zone("rA@3{a@1} rB@4{a@1}")
    fail(rows, "1")
    plan()
    target = moves(rows)["a"][1]
    fail(rows, "3" if target == "rA" else "4")

    plan()

    other = {"rA": "rB", "rB": "rA"}[target]
    assert moves(rows) == {"a": (MoveState.PLANNED, other)}
    assert states() == {target: "active", other: "consuming"}


def test_started_move_is_planned_anew_when_its_target_dies() -> None:
    rows = make_zone("rA@3{a@1} rB@4{a@1}")
    fail(rows, "1")
    plan()
    start_move(rows.uuid("a"), now=timezone.now())
    target = moves(rows)["a"][1]
    fail(rows, "3" if target == "rA" else "4")

    assert start_move(rows.uuid("a"), now=timezone.now()) == ""
    assert zones_to_plan() == ["az-a"]
    plan()

    assert moves(rows) == {"a": (MoveState.PLANNED, {"rA": "rB", "rB": "rA"}[target])}
    assert zones_to_plan() == []


def test_started_move_of_a_vm_that_is_nowhere_ends_when_its_target_dies() -> None:
    rows = make_zone("rA@3{a@1} rB@4{a@1}")
    fail(rows, "1")
    plan()
    start_move(rows.uuid("a"), now=timezone.now())
    Instance.objects.filter(pk=rows.vms["a"].pk).update(host=None)
    fail(rows, "3", "4")

    plan()

    assert moves(rows) == {}
    assert zones_to_plan() == []


def test_slot_goes_when_its_vm_arrives_and_its_room_is_the_vms() -> None:
    rows = make_zone("r@3{a@1,b@2}")
    fail(rows, "1")
    plan()
    start_move(rows.uuid("a"), now=timezone.now())
    arrive(rows, "a", "3")
    assert room_gib("3") == (4, 4)

    assert settle() == {"arrived": 1}

    assert room_gib("3") == (4, 0)
    assert not Reservation.objects.filter(kind="failover").exists()
    assert not ReservationAllocation.objects.exists()
    assert EvacuationPlan.objects.get().state == EvacuationState.DONE
    assert moves(rows) == {"a": (MoveState.ARRIVED, "r")}


def test_a_plan_keeps_users_whom_a_loop_chose_to_leave_before_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Their flavor needs no slot any more, and then their host dies."""
    rows = make_zone("r@3{a@1,b@2}")
    FailoverPolicy.objects.update(required_count=0)
    planned = covering.plan_zone

    def plan_zone(*args: Any, **options: Any) -> ZonePlan:
        chosen = planned(*args, **options)
        fail(rows, "1")
        plan()
        return chosen

    monkeypatch.setattr(loop, "plan_zone", plan_zone)
    result = loop.reconcile_zone("az-a", request_id="test")

    assert result.plan is not None
    assert len(result.plan.cleaning.removals) == 2
    assert moves(rows) == {"a": (MoveState.PLANNED, "r")}
    users = ReservationAllocation.objects.values_list("vm_uuid", flat=True)
    assert set(users) == {rows.uuid("a"), rows.uuid("b")}


def test_slot_is_active_again_when_its_vm_went_elsewhere() -> None:
    rows = make_zone("r@3{a@1,b@2}", hosts=("9",))
    fail(rows, "1")
    plan()
    arrive(rows, "a", "9")

    assert settle() == {"elsewhere": 1}

    assert states() == {"r": "active"}
    assert [row.vm_uuid for row in ReservationAllocation.objects.all()] == [rows.uuid("b")]


def test_vm_that_is_gone_ends_its_move() -> None:
    rows = make_zone("r@3{a@1}")
    fail(rows, "1")
    plan()
    rows.vms["a"].delete()

    assert settle() == {"dropped": 1}
    assert states() == {"r": "active"}


@pytest.mark.parametrize(
    ("age", "is_started", "expected"),
    [
        pytest.param(timedelta(minutes=1), False, {}, id="too early to tell"),
        pytest.param(BACK_GRACE, False, {"dropped": 1}, id="the host is back for good"),
        pytest.param(BACK_GRACE, True, {}, id="Nova has asked for it"),
        pytest.param(START_LIMIT, True, {"dropped": 1}, id="and nothing came of it"),
        pytest.param(-TOLERANCE, False, {}, id="a moment ahead, as between two statements"),
        pytest.param(-DAY, False, {"dropped": 1}, id="a clock a day ahead planned it"),
        pytest.param(-DAY, True, {"dropped": 1}, id="a clock a day ahead started it"),
    ],
)
def test_move_is_dropped_when_the_host_is_back(
    age: timedelta, is_started: bool, expected: dict[str, int]
) -> None:
    rows = make_zone("r@3{a@1}")
    fail(rows, "1")
    start = timezone.now()
    plan(start)
    if is_started:
        start_move(rows.uuid("a"), now=start)
    fail(rows, "1", state=HostState.UP)

    assert settle(start + age) == expected


def test_open_plan_stays_while_vms_wait_on_a_dead_host() -> None:
    rows = make_zone("r@3{a@1}")
    fail(rows, "1")
    start = timezone.now()
    plan(start)

    assert settle(start + timedelta(days=1)) == {}
    assert EvacuationPlan.objects.get().state == EvacuationState.OPEN


@pytest.mark.sql("zones_without_plan")
def test_plan_can_be_made_again_after_it_is_done() -> None:
    rows = make_zone("rA@3{a@1,b@2} rB@4{b@2}")
    fail(rows, "1")
    plan()
    arrive(rows, "a", "3")
    settle()
    fail(rows, "2")

    plan()

    assert EvacuationPlan.objects.count() == 2
    assert moves(rows)["b"] == (MoveState.PLANNED, "rB")


def test_arrived_vm_whose_new_host_dies_is_planned_again() -> None:
    rows = make_zone("rA@3{a@1,x@7} rB@4{b@1}", required=1)
    fail(rows, "1")
    plan()
    arrive(rows, "a", "3")
    settle()
    fail(rows, "3")

    plan_evacuation("az-a", actor=ACTOR, request_id="test", now=timezone.now())

    assert moves(rows) == {
        "a": (MoveState.UNPROTECTED, ""),
        "b": (MoveState.PLANNED, "rB"),
    }


def test_database_refuses_a_second_open_plan_and_a_slot_for_two() -> None:
    rows = make_zone(S3)
    fail(rows, "1")
    plan()
    now = timezone.now()

    with pytest.raises(IntegrityError, match="one_open"):
        EvacuationPlan.objects.create(zone="az-a", started_at=now, changed_at=now)
    move = EvacuationMove.objects.get()
    with pytest.raises(IntegrityError, match="slot_once"):
        EvacuationMove.objects.create(
            plan=move.plan,
            vm_uuid="other",
            state=MoveState.PLANNED,
            from_host=move.from_host,
            target_host=move.target_host,
            reservation=move.reservation,
            changed_at=now,
        )


def in_threads(*work: Callable[[], Any]) -> list[Any]:
    def run(one: Callable[[], Any]) -> Any:
        try:
            return one()
        finally:
            connections.close_all()

    with ThreadPoolExecutor(len(work)) as pool:
        return [future.result() for future in [pool.submit(run, one) for one in work]]


def test_planners_settlers_and_nova_side_by_side_leave_one_plan() -> None:
    rows = make_zone(S7)
    fail(rows, "1", "2")
    guide = PlannedEvacuations()

    results = in_threads(
        plan,
        plan,
        settle,
        lambda: guide.planned_host(rows.uuid("a")),
        lambda: guide.planned_host(rows.uuid("b")),
        settle,
    )
    plan()

    assert EvacuationPlan.objects.count() == 1
    planned = moves(rows)
    assert {state for state, _ in planned.values()} <= {MoveState.PLANNED, MoveState.STARTED}
    # rA as well, for whoever is planned after the other has started
    assert planned["a"][1] in {"rA", "rB"}
    assert planned["b"][1] in {"rA", "rC"}
    assert planned["a"][1] != planned["b"][1]
    assert set(results[3:5]) <= {"h3", "h4", "h6", ""}
    consuming = {name for name, state in states().items() if state == "consuming"}
    assert consuming == {slot for _, slot in planned.values()}


@pytest.fixture
def nova(settings: Any) -> NovaClient:
    settings.HEADROOM = settings.HEADROOM.model_copy(update={"auth": "noauth"})
    ensure_shipped_pipelines(request_id="test")
    make_project()
    make_flavor("small", 4096, 1)
    return NovaClient(hosts=tuple(f"h{number}" for number in range(1, 10)))


def evacuate(nova: NovaClient, rows: ZoneRows, name: str) -> list[str]:
    return nova.hosts(
        instance_uuid=rows.uuid(name),
        availability_zone="az-a",
        project_id="project-1",
        hints={"_nova_check_type": ["evacuate"]},
        ignore_hosts=[rows.vms[name].host_name],
    )


def test_nova_is_told_the_planned_host_first(nova: NovaClient) -> None:
    rows = make_zone(S3, hosts=("6", "7", "8", "9"))
    fail(rows, "1", "2")
    plan()

    answers = {name: evacuate(nova, rows, name)[0] for name in ("a", "b")}

    assert answers == {"a": "h4", "b": "h5"}
    assert {state for state, _ in moves(rows).values()} == {MoveState.STARTED}


def test_first_request_for_a_host_that_seems_alive_makes_the_plan(nova: NovaClient) -> None:
    rows = make_zone("rA@3{a@1} rB@4{b@1}", hosts=("6", "7", "8", "9"))

    first = evacuate(nova, rows, "a")

    assert first[0] == "h3"
    assert moves(rows) == {
        "a": (MoveState.STARTED, "rA"),
        "b": (MoveState.PLANNED, "rB"),
    }
    assert EvacuationPlan.objects.get().failed_hosts == ["h1"]


def test_planned_host_is_first_even_where_others_score_far_better(nova: NovaClient) -> None:
    rows = make_zone("r@3{a@1}", hosts=("6", "7", "8", "9"))
    fail(rows, "1")
    plan()
    weights = {f"h{number}": 100.0 for number in range(1, 10)} | {"h3": -100.0}

    hosts = nova.hosts(
        instance_uuid=rows.uuid("a"),
        availability_zone="az-a",
        project_id="project-1",
        hints={"_nova_check_type": ["evacuate"]},
        weights=weights,
    )

    assert hosts[0] == "h3"
    assert len(hosts) > 1


def test_vm_without_slots_is_scheduled_as_ever_and_plans_nothing(nova: NovaClient) -> None:
    rows = make_zone("", vms={"a": "1"}, hosts=("6", "7"))

    assert set(evacuate(nova, rows, "a")) <= {"h6", "h7"}
    assert not EvacuationPlan.objects.exists()


def test_all_vms_of_a_host_go_to_their_slots_though_none_has_landed(nova: NovaClient) -> None:
    """Hosts with slots are full: what is in flight into one slot takes no room of another."""
    rows = make_zone("rA@3{a@1} rB@3{b@1} rC@3{c@1}", memory_gib=12, required=1)
    fail(rows, "1")
    plan()

    answers = {name: evacuate(nova, rows, name) for name in ("a", "b", "c")}

    assert answers == {"a": ["h3"], "b": ["h3"], "c": ["h3"]}


def test_plan_holds_though_vms_are_in_flight_into_slots_beside(nova: NovaClient) -> None:
    rows = make_zone("rA@3{a@1} rB@3{b@1} rC@4{c@2}", memory_gib=8, required=1)
    fail(rows, "1")
    plan()
    assert evacuate(nova, rows, "a")[0] == "h3"
    fail(rows, "2")

    plan()

    assert moves(rows) == {
        "a": (MoveState.STARTED, "rA"),
        "b": (MoveState.PLANNED, "rB"),
        "c": (MoveState.PLANNED, "rC"),
    }


def test_no_slot_is_found_wanting_while_one_beside_is_being_filled(nova: NovaClient) -> None:
    rows = make_zone("rA@3{a@1} rB@3{b@2}", memory_gib=8, required=1)
    fail(rows, "1")
    assert evacuate(nova, rows, "a")[0] == "h3"

    validate_zone("az-a", request_id="test", reservation_ids=[rows.slots["rB"].pk])

    kept = ReservationAllocation.objects.get(reservation=rows.slots["rB"])
    assert kept.validated_at is not None
