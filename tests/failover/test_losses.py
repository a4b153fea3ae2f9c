"""What a loss or a drain touches, read alone, says the same as the whole zone (failover, 17.2)."""

from __future__ import annotations

import random
from itertools import combinations

import pytest
from django.conf import settings
from django.utils import timezone

from capacity.models import ReservationAllocation
from failover.domain.drill import DrillPolicy, DrillResult, simulate
from failover.domain.drill_columns import drill_state_of
from failover.domain.drill_state import FailureSet, UnknownFailureDomainError
from failover.selectors.drain import check_drain
from failover.selectors.drills import drill_state, zone_snapshot
from failover.selectors.losses import drain_snapshots, loss_snapshot, loss_state
from failover.selectors.zone import failover_zones
from hosts.models import Host, Instance
from tests.examples import scaled
from tests.factories import make_host
from tests.failover.zones import flavor, hosts, require, run, slots, vm
from tests.process_tables import reset_host_table

pytestmark = pytest.mark.django_db(transaction=True)


def untidy_zone(seed: int, *, reports: bool) -> None:
    """Cover a zone, then let VMs move, stop and go; hosts report what they please."""
    draw = random.Random(seed)  # noqa: S311 - a test
    reset_host_table()
    hosts(" ".join(f"host{number}" for number in range(1, 8)), gib=128, vcpus=64)
    hosts("other1 other2", zone="az-b", gib=128, vcpus=64)
    kinds = [flavor("m1.a", gib=4), flavor("m1.b", gib=8)]
    require(any=2)
    for number in range(12):
        vm(f"vm-{number}@host{draw.randint(1, 7)}", of=draw.choice(kinds))
    vm("elsewhere@other1")
    run()
    everywhere = list(Host.objects.order_by("name"))
    listed = list(Instance.objects.order_by("openstack_id"))
    for row in draw.sample(listed, 4):
        place = draw.choice([*everywhere, None])
        Instance.objects.filter(pk=row.pk).update(host=place, host_name=place.name if place else "")
    draw.choice(listed).delete()
    for host in everywhere if reports else ():
        seen = draw.sample(listed, 3)
        Host.objects.filter(pk=host.pk).update(
            reported_instances=[
                {"id": row.openstack_id, "name": row.name, "active": draw.random() < 0.8}
                for row in seen
            ]
        )
    Host.objects.filter(name="host2").update(state="down")


def drilled(names: tuple[str, ...], *, whole: bool) -> DrillResult:
    now = timezone.now()
    zone = zone_snapshot("az-a", now=now) if whole else loss_snapshot("az-a", names, now=now)
    return simulate(drill_state_of([zone], failing=names), names)


@pytest.mark.parametrize("trusts", [False, True])
@pytest.mark.parametrize("reports", [False, True])
@pytest.mark.parametrize("seed", range(2))
def test_a_drill_answers_as_on_the_whole_zone(
    seed: int, reports: bool, trusts: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = settings.HEADROOM.failover.model_copy(update={"trust_host_location": trusts})
    monkeypatch.setattr(
        "failover.conf.settings.HEADROOM",
        settings.HEADROOM.model_copy(update={"failover": chosen}),
    )
    untidy_zone(seed, reports=reports)
    names = [f"host{number}" for number in range(1, 8)]

    found = 0
    for failing in [*combinations(names, 1), *combinations(names, 2), tuple(names)]:
        answer = drilled(failing, whole=False)
        assert answer == drilled(failing, whole=True)
        found += len(answer.assignments) + len(answer.unprotected)

    assert found


@pytest.mark.parametrize("reports", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_a_simulation_answers_as_on_the_whole_region(seed: int, reports: bool) -> None:
    untidy_zone(seed, reports=reports)
    run("az-b")
    names = [*(f"host{number}" for number in range(1, 8)), "other1", "other2"]
    now = timezone.now()
    whole = drill_state(failover_zones(), now=now)
    asked = [FailureSet(hosts=few) for count in (1, 2) for few in combinations(names, count)]

    for failure in [FailureSet(), *asked, FailureSet(hosts=("host1",), zones=("az-b",))]:
        state, failed = loss_state(failure, now=now)

        assert failed == whole.expand(failure)
        for policy in DrillPolicy:
            assert simulate(state, failed, policy=policy) == simulate(whole, failed, policy=policy)


def test_hosts_racks_and_zones_that_nobody_has_are_named() -> None:
    hosts("host1", building_block="bb1")
    make_host("nowhere", zone="")
    known = FailureSet(hosts=("host1",), racks=("bb1",), zones=("az-a",))
    unknown = FailureSet(hosts=("host1", "host9", "nowhere"), racks=("bb2", ""), zones=("az-z",))

    assert loss_state(known, now=timezone.now())[1] == {"host1"}
    with pytest.raises(UnknownFailureDomainError) as refused:
        loss_state(unknown, now=timezone.now())

    assert refused.value.names == ("host host9", "host nowhere", "rack bb2", "rack ", "zone az-z")


def test_nothing_is_read_that_the_hosts_do_not_touch() -> None:
    untidy_zone(1, reports=False)
    busiest = max(Host.objects.filter(zone="az-a"), key=lambda host: host.instances.count())

    zone = loss_snapshot("az-a", [busiest.name, "other1", "nowhere"], now=timezone.now())

    here = set(busiest.instances.values_list("openstack_id", flat=True))
    assert set(zone.vms.uuids) == here
    assert len(zone.hosts) == 7
    assert len(zone.members) == ReservationAllocation.objects.filter(vm_uuid__in=here).count()
    assert len(zone.slots) == len(set(zone.members.slot.tolist()))


@pytest.mark.parametrize("reports", [False, True])
@pytest.mark.parametrize("seed", range(min(3, scaled(2))))
def test_a_drain_is_judged_as_on_whole_zones(
    seed: int, reports: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    untidy_zone(seed, reports=reports)
    run("az-b")
    names = [*(f"host{number}" for number in range(1, 8)), "other1", "other2"]
    asked, now = [*combinations(names, 1), *combinations(names, 2)], timezone.now()

    near = [check_drain(hosts, now=now) for hosts in asked]
    monkeypatch.setattr(
        "failover.selectors.drain.drain_snapshots",
        lambda zones, _, *, now: [zone_snapshot(zone, now=now) for zone in zones],
    )

    assert near == [check_drain(hosts, now=now) for hosts in asked]
    assert any(answer.report.moves for answer in near)
    assert any(answer.report.weakened for answer in near) or reports


def test_a_drain_reads_the_slots_around_its_hosts_alone() -> None:
    hosts(" ".join(f"host{number}" for number in range(1, 12)))
    require(any=1)
    for number in range(1, 12):
        vm(f"vm-{number}@host{number}")
    slots("r1@host2{vm-1@host1,vm-3@host3} r2@host5{vm-4@host4} r3@host7{vm-3@host3,vm-6@host6}")
    slots("r4@host9{vm-6@host6,vm-8@host8} r5@host11{vm-8@host8,vm-10@host10}")

    (with_vm,) = drain_snapshots(["az-a"], ["host1"], now=timezone.now())
    (with_slot,) = drain_snapshots(["az-a"], ["host2"], now=timezone.now())

    assert with_vm.slots.names == ("r1", "r3")
    assert set(with_vm.vms.uuids) == {"vm-1", "vm-3", "vm-6"}
    assert with_slot.slots.names == ("r1", "r3", "r4")
    assert set(with_slot.vms.uuids) == {"vm-1", "vm-2", "vm-3", "vm-6", "vm-8"}
    assert len(with_vm.hosts) == 11
