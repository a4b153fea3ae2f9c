"""What a loss touches, read alone, says the same as its whole zone (spec failover, 17.2)."""

from __future__ import annotations

import random
from itertools import combinations

import pytest
from django.conf import settings
from django.utils import timezone

from capacity.models import ReservationAllocation
from failover.domain.drill import DrillResult, simulate
from failover.domain.drill_columns import drill_state_of
from failover.selectors.drills import zone_snapshot
from failover.selectors.losses import loss_snapshot
from hosts.models import Host, Instance
from tests.failover.zones import flavor, hosts, require, run, vm
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


def test_nothing_is_read_that_the_hosts_do_not_touch() -> None:
    untidy_zone(1, reports=False)
    busiest = max(Host.objects.filter(zone="az-a"), key=lambda host: host.instances.count())

    zone = loss_snapshot("az-a", [busiest.name, "other1", "nowhere"], now=timezone.now())

    here = set(busiest.instances.values_list("openstack_id", flat=True))
    assert set(zone.vms.uuids) == here
    assert len(zone.hosts) == 7
    assert len(zone.members) == ReservationAllocation.objects.filter(vm_uuid__in=here).count()
    assert len(zone.slots) == len(set(zone.members.slot.tolist()))
