"""Planning one VM at once (spec failover, 13.6, 17.5, 17.8)."""

from __future__ import annotations

import random
from datetime import timedelta
from typing import Any

import pytest
from celery.exceptions import SoftTimeLimitExceeded
from django.conf import settings
from django.utils import timezone

from capacity.models import Reservation, ReservationAllocation
from failover import tasks
from failover.models import (
    DueVM,
    FailoverCooldown,
    FailoverDecision,
    FailoverEvent,
    FailoverReservation,
    FailoverZone,
)
from failover.selectors.vicinity import load_vicinity
from failover.services import FailoverService
from failover.services.replanning import ReplanOutcome, replan_due, replan_vm
from failover.services.validation import validate_zone
from hosts.models import Domain, Host, HostStatus, Instance, ServerGroup
from tests.examples import scaled
from tests.factories import make_domain
from tests.failover.zones import assert_sound, cover, flavor, hosts, require, run, slots, state, vm

pytestmark = pytest.mark.django_db

EXTERNAL = "CUSTOM_EXTERNAL_CUSTOMER_EXCLUSIVE"
TEN = " ".join(f"host{number}" for number in range(1, 11))


def plan(uuid: str = "vm-1", **options: Any) -> Any:
    return replan_vm(uuid, request_id="replan-test", **options)


def assert_loop_agrees(uuid: str) -> None:
    """The run of the zone leaves the VM as it is."""
    before = {name: users.get(uuid) for name, (_, users) in state().items() if uuid in users}
    run()
    after = {name: users.get(uuid) for name, (_, users) in state().items() if uuid in users}
    assert after == before


def test_new_vm_joins_what_exists_before_anything_is_made() -> None:
    hosts(TEN)
    require(any=2)
    vm("vm-1@host1")
    vm("vm-2@host2")
    slots("r1@host3{vm-2@host2}, r2@host4{vm-2@host2}")
    done = plan()
    assert (done.outcome, done.joined, done.created) == (ReplanOutcome.COVERED, 2, 1)
    assert sum("vm-1" in users for _, users in state().values()) == 2
    assert_sound(required=2)
    assert_loop_agrees("vm-1")


def test_tightest_size_then_fewest_users_is_joined() -> None:
    hosts(TEN)
    require(any=1)
    vm("vm-1@host1")
    for number in (2, 3, 4):
        vm(f"vm-{number}@host{number}")
    slots("r1@host5{vm-2@host2,vm-3@host3}, r2@host6{vm-4@host4}")
    slots("r3@host7{}", gib=16)
    assert plan().created == 0
    assert state()["r2"][1].keys() == {"vm-4", "vm-1"}


def test_second_call_finds_nothing_to_do() -> None:
    hosts(TEN)
    require(any=2)
    vm("vm-1@host1")
    assert plan().created == 2
    before = state()
    again = plan()
    assert (again.outcome, again.joined) == (ReplanOutcome.COVERED, 0)
    assert state() == before


def test_dry_run_writes_nothing() -> None:
    hosts(TEN)
    require(any=2)
    vm("vm-1@host1")
    done = plan(is_dry_run=True)
    assert (done.outcome, done.joined, done.created) == (ReplanOutcome.COVERED, 2, 2)
    assert state() == {}
    assert not FailoverDecision.objects.exists()


def test_vm_that_moved_is_covered_from_its_new_host() -> None:
    hosts(TEN)
    require(any=2)
    row = vm("vm-1@host1")
    plan()
    target = Host.objects.get(name=next(iter(state().values()))[0])
    Instance.objects.filter(pk=row.pk).update(host=target)
    assert cover() == {}
    assert plan().joined == 2
    run()
    assert target.name not in {host for host, users in state().values() if users}
    assert_loop_agrees("vm-1")


def test_vm_that_grew_changes_into_larger_reservations() -> None:
    hosts(TEN)
    require(any=2)
    row = vm("vm-1@host1")
    plan()
    large = flavor("m1.huge", vcpus=8, gib=16)
    Instance.objects.filter(pk=row.pk).update(
        flavor_name=large.name, memory_bytes=large.memory_bytes, vcpus=large.vcpus
    )
    done = plan()
    assert (done.outcome, done.removed, done.created) == (ReplanOutcome.COVERED, 2, 2)
    sizes = Reservation.objects.filter(kind="failover").values_list("memory_bytes", flat=True)
    assert set(sizes) == {large.memory_bytes}
    assert_loop_agrees("vm-1")


def test_surplus_is_trimmed_when_the_flavor_needs_less() -> None:
    hosts(TEN)
    require(**{"m1.large": 3, "m1.small": 1})
    row = vm("vm-1@host1")
    plan()
    assert cover() == {"vm-1": 3}
    Instance.objects.filter(pk=row.pk).update(flavor_name=flavor("m1.small").name)
    assert plan().removed == 2
    assert cover() == {"vm-1": 1}
    assert_loop_agrees("vm-1")


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        pytest.param({"status": "BUILD"}, "covered", id="building"),
        pytest.param({"status": "SHUTOFF"}, "covered", id="stopped: gets nothing new"),
        pytest.param({"host": None}, "not_needed", id="on no host"),
    ],
)
def test_vm_that_is_owed_nothing_gets_nothing(fields: dict[str, Any], words: str) -> None:
    hosts(TEN)
    require(any=2)
    row = vm("vm-1@host1")
    Instance.objects.filter(pk=row.pk).update(**fields)
    assert plan().outcome == words
    assert state() == {}


def test_unknown_vm_is_not_needed() -> None:
    assert plan("nobody").outcome == ReplanOutcome.NOT_NEEDED


def test_members_of_a_vm_that_nobody_lists_are_left_to_the_loop() -> None:
    hosts(TEN)
    require(any=2)
    row = vm("vm-1@host1")
    plan()
    Instance.objects.filter(pk=row.pk).delete()
    assert plan().outcome == ReplanOutcome.NOT_NEEDED
    assert cover() == {"vm-1": 2}


def test_shortfall_is_explained_and_forgotten_when_it_ends() -> None:
    hosts("host1 host2")
    require(any=2)
    vm("vm-1@host1")
    done = plan()
    assert (done.outcome, done.joined, done.reason) == ("short", 1, "no_eligible_host")
    kept = FailoverDecision.objects.get()
    assert (kept.reason, kept.current_count, kept.required_count) == ("no_eligible_host", 1, 2)
    hosts("host3")
    assert plan().outcome == ReplanOutcome.COVERED
    assert not FailoverDecision.objects.exists()
    assert FailoverEvent.objects.filter(reason="CoverageRestored", vm_uuid="vm-1").exists()


@pytest.mark.parametrize(
    ("gib", "reason"),
    [pytest.param(4, "no_room", id="full"), pytest.param(32, "", id="room")],
)
def test_rooms_of_hosts_decide(gib: int, reason: str) -> None:
    hosts("host1", gib=8)
    hosts("host2 host3", gib=gib)
    require(any=2)
    vm("vm-1@host1")
    assert plan().reason == reason


def test_compatible_hosts_decide() -> None:
    hosts("host1 host2", traits=["CUSTOM_HANA"])
    hosts("host3")
    require(any=2)
    vm("vm-1@host1", of=flavor("m1.hana", CUSTOM_HANA="required"))
    assert plan().reason == "no_eligible_host"
    assert [host for host, _ in state().values()] == ["host2"]


@pytest.mark.parametrize("how", ["alone", "in the loop"])
@pytest.mark.parametrize(
    ("domain", "chosen"),
    [
        pytest.param("monsoon3", {"host2"}, id="any host"),
        pytest.param("iaas-customer", {"host3"}, id="hosts of customers"),
        pytest.param(None, set(), id="nowhere is safe for a domain that nobody knows"),
    ],
)
def test_domains_decide(domain: str | None, chosen: set[str], how: str) -> None:
    """As for slots of commitments (tests/commitments/test_one_question.py)."""
    hosts("host1 host2")
    hosts("host3", traits=[EXTERNAL])
    Domain.objects.all().delete()
    if domain is not None:
        make_domain(name=domain)
    require(any=1)
    vm("vm-1@host1")
    if domain == "monsoon3":
        Host.objects.filter(name="host3").update(status=HostStatus.DISABLED)
    if how == "alone":
        plan()
    else:
        run()
    assert {host for host, _ in state().values()} == chosen


def test_members_of_a_group_that_keeps_apart_do_not_meet() -> None:
    hosts("host1 host2 host3")
    require(any=1)
    first, other = vm("vm-1@host1"), vm("vm-2@host2")
    ServerGroup.objects.create(
        openstack_id="group",
        policy="anti-affinity",
        members=[first.openstack_id, other.openstack_id],
    )
    plan()
    assert [host for host, _ in state().values()] == ["host3"]


@pytest.mark.parametrize("how", ["alone", "by the loop"])
def test_members_of_a_group_that_stays_together_are_covered_each_by_itself(how: str) -> None:
    hosts(TEN)
    require(any=2)
    first, other = vm("vm-1@host1"), vm("vm-2@host1")
    ServerGroup.objects.create(
        openstack_id="group",
        policy="affinity",
        members=[first.openstack_id, other.openstack_id],
    )
    if how == "alone":
        plan("vm-1")
        plan("vm-2")
    else:
        run()
    assert cover() == {"vm-1": 2, "vm-2": 2}
    assert all(len(users) == 1 for _, users in state().values())
    assert_sound(required=2)


def test_host_that_was_refused_of_late_is_not_proposed() -> None:
    hosts("host1 host2 host3")
    require(any=1)
    vm("vm-1@host1")
    FailoverCooldown.objects.create(
        vm_uuid="vm-1",
        host=Host.objects.get(name="host2"),
        until=timezone.now() + timedelta(hours=1),
    )
    slots("r1@host2{}")
    plan()
    assert [host for host, users in state().values() if users] == ["host3"]


def test_brake_of_the_zone_holds_single_plans_too() -> None:
    hosts(TEN)
    require(any=1)
    vm("vm-1@host1")
    FailoverZone.objects.create(zone="az-a", brake_reason="vm_list_shrank")
    assert plan().outcome == ReplanOutcome.HALTED
    assert state() == {}


def test_no_more_share_a_reservation_than_the_zone_allows() -> None:
    # 7 hosts and n = 2: at most 3 share one.
    hosts(" ".join(f"host{number}" for number in range(1, 8)), gib=256, vcpus=64)
    require(any=2)
    for number in range(1, 8):
        vm(f"vm-{number}@host{number}")
        plan(f"vm-{number}")
    assert max(len(users) for _, users in state().values()) <= 3
    assert_sound()


@pytest.mark.parametrize("trusts", [False, True])
def test_where_hosts_report_their_vms_they_are_heard(
    trusts: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    hosts(TEN)
    require(any=1)
    vm("vm-1@host1")
    Host.objects.filter(name="host1").update(reported_instances=[])
    Host.objects.filter(name="host2").update(
        reported_instances=[{"id": "vm-1", "name": "vm-1", "active": True}]
    )
    chosen = settings.HEADROOM.failover.model_copy(update={"trust_host_location": trusts})
    monkeypatch.setattr(
        "failover.conf.settings.HEADROOM",
        settings.HEADROOM.model_copy(update={"failover": chosen}),
    )
    done = plan()
    assert done.outcome == ("covered" if trusts else "not_needed")
    assert [users for _, users in state().values()] == ([{"vm-1": "host2"}] if trusts else [])


def due() -> list[str]:
    return list(DueVM.objects.values_list("vm_uuid", flat=True))


@pytest.mark.sql("failover_vms_came", "failover_vm_changed")
def test_what_happens_to_vms_makes_them_due() -> None:
    hosts(TEN)
    row = vm("vm-1@host1")
    assert due() == ["vm-1"]
    DueVM.objects.all().delete()
    one = Instance.objects.filter(pk=row.pk)
    one.update(name="other", task_state="")
    one.update(status="ACTIVE", memory_bytes=row.memory_bytes)
    assert due() == []
    one.update(host=Host.objects.get(name="host2"))
    one.update(status="SHUTOFF")
    one.update(memory_bytes=row.memory_bytes * 2)
    assert due() == ["vm-1"] * 3
    one.update(host=None)
    one.update(name="again")
    assert len(due()) == 3


def test_statement_that_brings_very_many_vms_leaves_them_to_the_loop() -> None:
    hosts("host1")
    host = Host.objects.get()
    for first, count in ((0, 200), (200, 201)):
        Instance.objects.bulk_create(
            Instance(
                openstack_id=f"vm-{number}",
                project_id="p",
                flavor_name="m1.large",
                vcpus=1,
                memory_bytes=1,
                host=host,
                status="ACTIVE",
            )
            for number in range(first, first + count)
        )
        assert len(due()) == 200


def idle_zone() -> None:
    """The loop of the zone ran and is not due."""
    run()
    DueVM.objects.all().delete()


def test_due_vms_are_covered_and_forgotten() -> None:
    hosts(TEN)
    require(any=2)
    idle_zone()
    vm("vm-1@host1")
    vm("vm-2@host2")
    gone = vm("vm-3@host3")
    Instance.objects.filter(pk=gone.pk).delete()
    assert replan_due(request_id="r") == {"covered": 2, "not_needed": 1}
    assert cover() == {"vm-1": 2, "vm-2": 2}
    assert due() == []
    assert replan_due(request_id="r") == {}


def test_zone_whose_loop_is_due_keeps_its_notes() -> None:
    hosts(TEN)
    require(any=1)
    vm("vm-1@host1")
    assert replan_due(request_id="r") == {"skipped": 1}
    assert (cover(), due()) == ({}, ["vm-1"])
    run()
    assert tasks.replan_what_is_due() == {"covered": 1}
    assert (cover(), due()) == ({"vm-1": 1}, [])


def test_vm_that_cannot_be_planned_is_left_to_the_loop_and_stops_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hosts(TEN)
    require(any=2)
    idle_zone()
    vm("vm-1@host1")
    vm("vm-2@host2")

    def load(vm_uuid: str, *rest: Any, **options: Any) -> Any:
        if vm_uuid == "vm-1":
            message = "a defect"
            raise ValueError(message)
        return load_vicinity(vm_uuid, *rest, **options)

    monkeypatch.setattr("failover.services.replanning.load_vicinity", load)
    assert replan_due(request_id="r") == {"failed": 1, "covered": 1}
    assert (cover(), due()) == ({"vm-2": 2}, [])


def test_task_that_runs_out_of_time_keeps_its_notes(monkeypatch: pytest.MonkeyPatch) -> None:
    hosts(TEN)
    require(any=2)
    idle_zone()
    vm("vm-1@host1")

    def load(*_: Any, **__: Any) -> Any:
        raise SoftTimeLimitExceeded

    monkeypatch.setattr("failover.services.replanning.load_vicinity", load)
    with pytest.raises(SoftTimeLimitExceeded):
        replan_due(request_id="r")
    assert due() == ["vm-1"]


def test_very_many_due_vms_of_a_zone_are_left_to_its_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("failover.services.replanning.MOST_PER_ZONE", 1)
    hosts(TEN)
    require(any=1)
    idle_zone()
    vm("vm-1@host1")
    vm("vm-2@host2")
    assert replan_due(request_id="r")["left_to_the_loop"] == 2
    assert (cover(), due()) == ({}, [])
    assert FailoverZone.objects.get().next_run_at is None


def test_vms_of_a_failover_host_that_died_are_covered_elsewhere_at_once() -> None:
    hosts(TEN)
    require(any=1)
    vm("vm-1@host1")
    vm("vm-2@host2")
    idle_zone()
    (host,) = {host for host, _ in state().values()}
    Host.objects.filter(name=host).update(state="down")
    validate_zone("az-a", request_id="r")
    assert cover() == {}
    assert replan_due(request_id="r") == {"covered": 2}
    assert cover() == {"vm-1": 1, "vm-2": 1}
    assert host not in {host for host, _ in state().values()}


def test_task_and_published_service_plan_one_vm() -> None:
    hosts(TEN)
    require(any=1)
    vm("vm-1@host1")
    vm("vm-2@host2")
    assert tasks.replan_one_vm("vm-1") == {"outcome": "covered", "joined": 1, "reason": ""}
    assert FailoverService().replan_vm("vm-2").outcome == ReplanOutcome.COVERED
    assert cover() == {"vm-1": 1, "vm-2": 1}


@pytest.mark.parametrize("seed", range(scaled(3)))
def test_any_order_of_events_keeps_the_rules_and_leaves_the_loop_nothing_to_do(seed: int) -> None:
    draw = random.Random(seed)  # noqa: S311 - a test
    hosts(TEN, gib=96, vcpus=64)
    kinds = [flavor("m1.a", gib=4), flavor("m1.b", gib=8), flavor("m1.c", gib=12)]
    require(**{"m1.a": 2, "m1.b": 1, "m1.c": 2})
    alive: list[str] = []
    for turn in range(25):
        deed = draw.choice(("come", "come", "move", "resize", "die"))
        if deed == "come" or not alive:
            uuid = f"vm-{turn}"
            vm(f"{uuid}@host{draw.randint(1, 10)}", of=draw.choice(kinds))
            alive.append(uuid)
        else:
            uuid = draw.choice(alive)
            change(uuid, deed, draw, kinds)
        if deed == "die" and uuid in alive and not Instance.objects.filter(openstack_id=uuid):
            alive.remove(uuid)
        else:
            outcome = plan(uuid).outcome
            assert outcome in {"covered", "short"}
        assert_sound()
    loose = {name: users for name, (_, users) in state().items()}
    held = {one: {name for name, users in loose.items() if one in users} for one in alive}
    short = set(FailoverDecision.objects.values_list("vm_uuid", flat=True))
    run()
    after = {name: users for name, (_, users) in state().items()}
    for one in set(alive) - short:
        assert {name for name, users in after.items() if one in users} == held[one]


def change(uuid: str, deed: str, draw: random.Random, kinds: list[Any]) -> None:
    row = Instance.objects.filter(openstack_id=uuid)
    if deed == "move":
        row.update(host=Host.objects.get(name=f"host{draw.randint(1, 10)}"))
    elif deed == "resize":
        kind = draw.choice(kinds)
        row.update(flavor_name=kind.name, memory_bytes=kind.memory_bytes, vcpus=kind.vcpus)
    else:
        row.delete()
    from capacity.ledger.rooms import rebuild_host_capacity  # noqa: PLC0415

    rebuild_host_capacity()


def test_users_of_reservations_are_counted_as_they_are() -> None:
    hosts(TEN)
    require(any=1)
    vm("vm-1@host1")
    plan()
    users = ReservationAllocation.objects.get()
    assert users.vm_uuid == "vm-1"
    known = FailoverReservation.objects.get()
    assert known.next_validation_at is not None
    assert known.acknowledged_at is None


def test_user_that_the_vm_list_has_lost_is_heeded_all_the_same() -> None:
    hosts("host1 host2 host3 host4")
    require(any=1)
    lost = vm("vm-1@host1")
    slots("r1@host3{vm-1@host1}")
    Instance.objects.filter(pk=lost.pk).delete()
    vm("vm-2@host1")
    # The host table does not know where vm-1 ran; the database refuses, and its rows know.
    done = plan("vm-2")
    assert (done.outcome, done.created) == (ReplanOutcome.COVERED, 1)
    assert state()["r1"][1] == {"vm-1": "host1"}
