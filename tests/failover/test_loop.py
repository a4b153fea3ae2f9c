"""The loop against real rows and the real filters (spec failover, 9.6, 9.7)."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from capacity.models import Reservation, ReservationAllocation
from failover.choices import EventReason, RunOutcome
from failover.models import (
    FailoverDecision,
    FailoverEvent,
    FailoverReservation,
    FailoverRun,
    FailoverZone,
)
from hosts.models import Host, Instance
from tests.failover.zones import assert_sound, cover, flavor, hosts, require, run, slots, state, vm

pytestmark = pytest.mark.django_db


def slot_count() -> int:
    return FailoverReservation.objects.count()


def slot_hosts() -> list[str]:
    return sorted(host for host, _ in state().values())


def test_p1_two_vms_are_covered() -> None:
    hosts("host1 host2 host3 host4", vcpus=8, gib=16)
    vm("vm-1@host1")
    vm("vm-2@host2")
    require(**{"m1.large": 1})
    run()
    assert cover() == {"vm-1": 1, "vm-2": 1}
    assert slot_count() in {1, 2}
    assert_sound()


def test_p2_vm_on_the_host_of_a_reservation_gets_another() -> None:
    hosts("host1 host2 host3 host4", vcpus=8, gib=16)
    vm("vm-1@host1")
    vm("vm-2@host2")
    slots("res-1@host2{vm-1@host1}")
    require(**{"m1.large": 1})
    run()
    assert cover() == {"vm-1": 1, "vm-2": 1}
    assert slot_count() == 2
    assert_sound()


def test_p3_flavor_without_a_requirement_gets_nothing() -> None:
    hosts("host1 host2")
    vm("vm-1@host1", of=flavor("m1.small", vcpus=2, gib=4))
    require(**{"m1.large": 1})
    run()
    assert slot_count() == 0
    assert_sound()


def test_p4_third_vm_may_join_what_is_there() -> None:
    hosts("host1 host2 host3 host4 host5")
    for number in (1, 2, 3):
        vm(f"vm-{number}@host{number}")
    slots("res-1@host2{vm-1@host1}")
    require(**{"m1.large": 1})
    run()
    assert cover() == {"vm-1": 1, "vm-2": 1, "vm-3": 1}
    assert slot_count() in {2, 3}
    assert_sound()


def test_p5_reservations_stay_in_their_zone() -> None:
    hosts("host-a1 host-a2", zone="az-a")
    hosts("host-b1 host-b2", zone="az-b")
    vm("vm-a@host-a1")
    vm("vm-b@host-b1")
    require(**{"m1.large": 1})
    run("az-a")
    run("az-b")
    assert slot_hosts() == ["host-a2", "host-b2"]
    zones = dict(Reservation.objects.values_list("target_host__name", "zone"))
    assert zones == {"host-a2": "az-a", "host-b2": "az-b"}
    assert_sound()


def test_p6_vm_alone_in_its_zone_stays_uncovered() -> None:
    hosts("host-a1", zone="az-a")
    hosts("host-b1 host-b2", zone="az-b")
    vm("vm@host-a1")
    require(others=0)
    run("az-a")
    assert not FailoverDecision.objects.exists()
    require(any=1)
    run("az-a")
    run("az-b")
    assert slot_count() == 0
    decision = FailoverDecision.objects.get()
    assert (decision.vm_uuid, decision.reason) == ("vm", "no_eligible_host")
    assert decision.facts == {"compatible": 1, "with_room": 1, "eligible": 0}
    assert_sound()


def test_p7_two_zones_do_not_mix() -> None:
    hosts("a1 a2 a3", zone="az-a")
    hosts("b1 b2", zone="az-b")
    for text in ("vm-1@a1", "vm-2@a2", "vm-3@b1"):
        vm(text)
    require(any=1)
    run("az-a")
    run("az-b")
    assert cover() == {"vm-1": 1, "vm-2": 1, "vm-3": 1}
    assert slot_count() in {2, 3}
    assert_sound()


@pytest.mark.parametrize(
    ("vm_hosts", "empty_hosts", "existing", "slots_range"),
    [
        pytest.param(4, 4, "", range(4, 9), id="P8"),
        pytest.param(5, 4, "", range(5, 11), id="P9"),
        pytest.param(
            3, 3, "res-1@host4{vm-1@host1}, res-2@host5{vm-2@host2}", range(4, 7), id="P10"
        ),
    ],
)
def test_two_reservations_for_each(
    vm_hosts: int, empty_hosts: int, existing: str, slots_range: range
) -> None:
    total = vm_hosts + empty_hosts
    hosts(" ".join(f"host{number}" for number in range(1, vm_hosts + 1)))
    hosts(" ".join(f"host{number}" for number in range(vm_hosts + 1, total + 1)), vcpus=32, gib=64)
    for number in range(1, vm_hosts + 1):
        vm(f"vm-{number}@host{number}")
    slots(existing)
    require(**{"m1.large": 2})
    run()
    assert cover() == {f"vm-{number}": 2 for number in range(1, vm_hosts + 1)}
    assert slot_count() in slots_range
    assert_sound(2)


@pytest.mark.parametrize(
    ("vms", "existing", "gone"),
    [
        pytest.param(
            ["vm-1@host1"],
            "res-1@host2{vm-1@host1,vm-deleted@host3}",
            [("vm-deleted", "host3")],
            id="P11",
        ),
        pytest.param(
            ["vm-1@host2", "vm-2@host3"],
            "res-1@host4{vm-1@host1,vm-2@host3}",
            [("vm-1", "host1")],
            id="P12",
        ),
        pytest.param(
            ["vm-1@host3", "vm-2@host2"],
            "res-1@host3{vm-1@host1,vm-2@host2}",
            [("vm-1", "host1")],
            id="P13",
        ),
        pytest.param(
            ["vm-1@host1", "vm-2@host2"],
            "res-1@host3{vm-1@host1,vm-2@host4,vm-deleted@host5}",
            [("vm-2", "host4"), ("vm-deleted", "host5")],
            id="P14",
        ),
    ],
)
def test_stale_users_are_gone_after_two_runs(
    vms: list[str], existing: str, gone: list[tuple[str, str]]
) -> None:
    hosts("host1 host2 host3 host4 host5")
    for text in vms:
        vm(text)
    slots(existing)
    require(**{"m1.large": 1})
    run()
    run()
    left = {pair for _, users in state().values() for pair in users.items()}
    assert not left & set(gone)
    assert cover() == {text.split("@")[0]: 1 for text in vms}
    assert_sound()


def test_p15_required_trait_decides_on_the_host() -> None:
    hosts("host1 host2", traits=["CUSTOM_HANA"])
    hosts("host3 host4")
    vm("vm-hana@host1", of=flavor("hana", CUSTOM_HANA="required"))
    vm("vm-regular@host3")
    require(any=1)
    run()
    (holder,) = [host for host, users in state().values() if "vm-hana" in users]
    assert holder == "host2"
    assert cover() == {"vm-hana": 1, "vm-regular": 1}
    assert_sound()


def test_p16_forbidden_trait_excludes_a_host() -> None:
    hosts("host1 host3")
    hosts("host2", traits=["CUSTOM_HANA"])
    vm("vm@host1", of=flavor("plain", CUSTOM_HANA="forbidden"))
    require(any=1)
    run()
    assert slot_hosts() == ["host3"]
    assert_sound(1)


def test_p17_each_kind_gets_its_own_host() -> None:
    hosts("host1 host3", traits=["CUSTOM_HANA"])
    hosts("host2 host4")
    vm("vm-hana@host1", of=flavor("hana", CUSTOM_HANA="required"))
    vm("vm-plain@host2", of=flavor("plain", CUSTOM_HANA="forbidden"))
    require(any=1)
    run()
    assert slot_hosts() == ["host3", "host4"]
    assert_sound()


def test_p18_two_of_a_kind_share() -> None:
    hosts("host1 host2 host3", traits=["CUSTOM_HANA"])
    hosts("host4")
    kind = flavor("hana", CUSTOM_HANA="required")
    vm("vm-1@host1", of=kind)
    vm("vm-2@host2", of=kind)
    require(any=1)
    run()
    assert cover() == {"vm-1": 1, "vm-2": 1}
    assert_sound()


def test_p19_hana_exclusive_hosts_hold_hana_reservations() -> None:
    hosts("host1 host2", traits=["CUSTOM_HANA_EXCLUSIVE_HOST"])
    hosts("host3")
    vm("vm@host1", of=flavor("hana", CUSTOM_HANA_EXCLUSIVE_HOST="required"))
    require(any=1)
    run()
    assert slot_hosts() == ["host2"]
    assert cover() == {"vm": 1}
    assert_sound(1)


def test_new_reservation_is_written_as_published() -> None:
    hosts("host1 host2", zone="az1")
    vm("vm-1@host1")
    require(any=1)
    run("az1")
    held = FailoverReservation.objects.select_related("reservation__target_host").get()
    row = held.reservation
    assert held.name.startswith("failover-az1-")
    assert len(held.name) == len("failover-az1-") + 5
    assert (row.memory_bytes, row.vcpus) == (8589934592, 4)
    assert (row.zone, row.resource_name, row.flavor_group_name) == ("az1", "m1.large", "m1.large")
    assert row.target_host == row.confirmed_host == Host.objects.get(name="host2")
    assert (row.is_ready, row.ready_reason) == (True, "ReservationActive")
    assert held.acknowledged_at is None
    assert held.last_changed_at is not None
    assert state()[held.name] == ("host2", {"vm-1": "host1"})
    assert FailoverEvent.objects.get().reason == EventReason.SLOT_CREATED


def test_reservation_that_nobody_is_left_in_is_deleted_and_gives_its_room_back() -> None:
    hosts("host1 host2 host3")
    vm("vm-1@host1")
    slots("res-1@host2{vm-gone@host3}")
    require(**{"m2.*": 1})
    result = run()
    assert slot_count() == 0
    assert not Reservation.objects.exists()
    assert (result.figures.reservations_updated, result.figures.reservations_deleted) == (1, 1)
    assert_sound()


def test_run_counts_what_it_did() -> None:
    hosts("host1 host2 host3 host4")
    vm("vm-1@host1")
    vm("vm-2@host2")
    require(any=1)
    result = run()
    figures = result.figures
    assert (figures.total_vms, figures.vms_missing_failover, figures.vms_processed) == (2, 2, 2)
    assert (figures.reservations_needed, figures.created + figures.reused) == (2, 2)
    assert figures.total_reservations == figures.created
    row = FailoverRun.objects.get()
    assert (row.outcome, row.number, row.counts["created"]) == (
        RunOutcome.DONE,
        1,
        figures.created,
    )


def test_second_run_changes_nothing() -> None:
    hosts("host1 host2 host3 host4 host5")
    for number in (1, 2, 3):
        vm(f"vm-{number}@host{number}")
    require(any=2)
    run()
    before = state()
    result = run()
    assert state() == before
    assert (result.figures.created, result.figures.reused) == (0, 0)
    assert FailoverEvent.objects.count() == len(before)


def test_dry_run_plans_and_writes_nothing() -> None:
    hosts("host1 host2")
    vm("vm-1@host1")
    require(any=1)
    result = run(is_dry_run=True)
    assert result.plan is not None
    assert len(result.plan.cover.created) == 1
    assert slot_count() == 0
    assert not FailoverEvent.objects.exists()
    assert FailoverRun.objects.get().is_dry_run
    assert FailoverZone.objects.get().run_count == 0


def test_vm_that_moved_gets_a_new_reservation() -> None:
    hosts("host1 host2 host3")
    vm("vm-1@host1")
    require(any=1)
    run()
    (slot_host,) = slot_hosts()
    Instance.objects.update(host=Host.objects.get(name=slot_host))
    assert cover() == {}
    run()
    assert cover() == {"vm-1": 1}
    assert slot_host not in slot_hosts()
    assert_sound()


def test_surplus_is_released_and_the_rest_shrinks() -> None:
    hosts("host1 host2 host3 host4 host5 host6")
    vm("vm-1@host1")
    vm("vm-2@host2", of=flavor("m1.small", vcpus=2, gib=4))
    slots("res-1@host3{vm-1@host1,vm-2@host2}, res-2@host4{vm-1@host1}")
    require(any=1)
    run()
    assert cover() == {"vm-1": 1, "vm-2": 1}
    assert "res-2" not in state()
    vms = ReservationAllocation.objects.filter(vm_uuid="vm-1")
    vms.delete()
    Instance.objects.filter(openstack_id="vm-1").delete()
    run()
    row = FailoverReservation.objects.get(name="res-1").reservation
    assert (row.memory_bytes, row.vcpus) == (4 << 30, 2)
    assert_sound()


def test_resized_vm_leaves_what_it_does_not_fit_into() -> None:
    hosts("host1 host2 host3")
    vm("vm-1@host1")
    require(any=1)
    run()
    Instance.objects.update(memory_bytes=12 << 30)
    run()
    row = Reservation.objects.get()
    assert row.memory_bytes == 12 << 30
    assert cover() == {"vm-1": 1}


def test_stopped_vm_keeps_its_reservations_for_a_while_and_gets_none() -> None:
    hosts("host1 host2 host3")
    vm("vm-1@host1")
    require(any=1)
    run()
    now = timezone.now()
    Instance.objects.update(status="SHUTOFF", nova_updated_at=now)
    run()
    assert cover() == {"vm-1": 1}
    vm("vm-2@host2", status="SHUTOFF", nova_updated_at=now)
    result = run()
    assert (cover(), result.figures.vms_missing_failover) == ({"vm-1": 1}, 0)
    run(now=now + timedelta(hours=25))
    assert cover() == {}
    assert slot_count() == 0


@pytest.mark.parametrize("status", ["ERROR", "BUILD", "SHELVED_OFFLOADED"])
def test_vm_that_does_not_run_is_not_covered(status: str) -> None:
    hosts("host1 host2")
    vm("vm-1@host1", status=status)
    require(any=1)
    run()
    assert cover() == {}


@pytest.mark.parametrize(
    "fields",
    [{"conditions": {"HaEnabled": "False", "Ready": "True"}}, {"high_availability": False}],
    ids=["condition", "order"],
)
def test_vm_on_a_host_without_high_availability_needs_nothing(fields: dict[str, Any]) -> None:
    hosts("host1", **fields)
    hosts("host2")
    vm("vm-1@host1")
    require(any=1)
    run()
    assert cover() == {}


def test_decision_goes_once_the_vm_is_covered() -> None:
    hosts("host1")
    vm("vm-1@host1")
    require(any=1)
    run()
    assert FailoverDecision.objects.count() == 1
    hosts("host2")
    run()
    assert not FailoverDecision.objects.exists()
    reasons = list(FailoverEvent.objects.values_list("reason", flat=True))
    assert EventReason.COVERAGE_RESTORED in reasons


def test_lost_coverage_is_told_of() -> None:
    hosts("host1 host2")
    vm("vm-1@host1")
    require(any=1)
    run()
    ReservationAllocation.objects.update(memory_bytes=1)
    Instance.objects.update(memory_bytes=64 << 30)
    run()
    assert FailoverEvent.objects.filter(reason=EventReason.COVERAGE_LOST).count() == 1


def test_vm_without_resources_is_counted_and_never_placed() -> None:
    hosts("host1 host2")
    vm("vm-1@host1")
    Instance.objects.update(vcpus=0)
    require(any=1)
    result = run()
    assert result.figures.failed == 1
    assert FailoverDecision.objects.get().reason == "no_resources"


def test_host_without_room_holds_nothing() -> None:
    hosts("host1", gib=8)
    hosts("host2", gib=4)
    vm("vm-1@host1")
    require(any=1)
    run()
    assert FailoverDecision.objects.get().reason == "no_room"


def test_tenants_decide_for_reservations_too() -> None:
    hosts("host1 host2 host3")
    Host.objects.filter(name="host2").update(allowed_projects=["someone-else"])
    vm("vm-1@host1")
    require(any=1)
    run()
    assert slot_hosts() == ["host3"]


def test_anti_affinity_keeps_the_reservation_off_the_hosts_of_the_group() -> None:
    from hosts.models import ServerGroup  # noqa: PLC0415

    hosts("host1 host2 host3")
    vm("vm-1@host1")
    vm("vm-2@host2", of=flavor("other"))
    ServerGroup.objects.create(
        openstack_id="group", policy="anti-affinity", members=["vm-1", "vm-2"]
    )
    require(**{"m1.large": 1})
    run()
    assert slot_hosts() == ["host3"]
