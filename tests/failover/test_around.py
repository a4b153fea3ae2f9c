"""What is around a VM: the host table and the rows say the same (spec failover, 17.5)."""

from __future__ import annotations

import random

import numpy as np
import pytest
from django.utils import timezone

from capacity.host_table import load_host_table, reset_host_table
from failover.conf import current_config
from failover.domain.engine import EligibilityEngine, set_bits
from failover.models import FailoverReservation
from failover.selectors.table_around import TableSlotsAround
from failover.selectors.vicinity import DatabaseSlotsAround, load_vicinity
from failover.selectors.zone import failover_requirements, load_zone
from hosts.models import Instance
from tests.failover.zones import flavor, hosts, require, run, slots, vm

pytestmark = pytest.mark.django_db(transaction=True)


def grown_zone(seed: int) -> None:
    draw = random.Random(seed)  # noqa: S311 - a test
    reset_host_table()
    hosts(" ".join(f"host{number}" for number in range(1, 10)), gib=128, vcpus=64)
    hosts("other1 other2 other3", zone="az-b", gib=128, vcpus=64)
    kinds = [flavor("m1.a", gib=4), flavor("m1.b", gib=8)]
    require(any=2)
    for number in range(14):
        vm(f"vm-{number}@host{draw.randint(1, 9)}", of=draw.choice(kinds))
    vm("elsewhere@other1")
    run()
    run("az-b")
    slots("empty@host1{}")


@pytest.mark.sql("closed_reservations")
@pytest.mark.sql("failover_around_vm")
@pytest.mark.parametrize("seed", range(4))
def test_table_and_rows_and_engine_agree(seed: int) -> None:
    grown_zone(seed)
    seen = load_vicinity("vm-0", current_config(failover_requirements()), now=timezone.now())
    assert seen is not None
    table = TableSlotsAround(load_host_table(), seen.snapshot)
    rows = DatabaseSlotsAround(seen.snapshot)
    every = range(len(seen.snapshot.hosts))
    for host in every:
        assert table.closed_to(host) == rows.closed_to(host)
        assert table.touching([host]) == rows.touching([host])
    assert table.touching(every) == rows.touching(every)
    for below in (1, 3, 20):
        sizes = table.sizes(1, 1, below=below)
        assert set(sizes) <= set(rows.sizes(1, 1, below=below))
        for size in rows.sizes(1, 1, below=below):
            found = table.offers(size, without=(), below=below)
            wanted = rows.offers(size, without=(), below=below)
            assert [one.key for one in found] == [one.key for one in wanted]
            assert [one.users for one in found] == [one.users for one in wanted]
            assert table.confirmed(found) == list(wanted)
            for one in found:
                assert table.user_hosts(one.key) == rows.user_hosts(one.key)
    assert_as_the_engine(rows)


def assert_as_the_engine(rows: DatabaseSlotsAround) -> None:
    """What is closed to a host is what the engine of the zone knows."""
    zone = load_zone("az-a", current_config(failover_requirements()), now=timezone.now())
    members = zone.members
    engine = EligibilityEngine.from_columns(
        len(zone.hosts),
        zone.vms.host.tolist(),
        zone.slots.host.astype(np.int64),
        members.slot.astype(np.int64),
        members.vm.astype(np.int64),
    )
    for host in range(len(zone.hosts)):
        newcomer = len(engine.vm_host)
        engine.vm_host.append(host)
        engine.vm_slots.append([])
        open_slots = {
            int(zone.slots.ids[slot]) for slot in set_bits(engine.eligible_slots(newcomer))
        }
        every = set(zone.slots.ids.tolist())
        assert rows.closed_to(host) == every - open_slots


@pytest.mark.sql("failover_offers")
def test_offer_that_is_not_usable_any_more_is_not_confirmed() -> None:
    grown_zone(1)
    seen = load_vicinity("vm-0", current_config(failover_requirements()), now=timezone.now())
    assert seen is not None
    table = TableSlotsAround(load_host_table(), seen.snapshot)
    size = table.sizes(1, 1, below=99)[0]
    found = table.offers(size, without=(), below=99)
    assert table.confirmed(found) is not None
    FailoverReservation.objects.filter(reservation_id=found[0].key).update(state="consuming")
    assert table.confirmed(found) is None
    assert table.confirmed(found[1:]) is not None


def test_vm_without_a_host_has_no_vicinity() -> None:
    grown_zone(2)
    Instance.objects.filter(openstack_id="vm-0").update(host=None)
    config = current_config(failover_requirements())
    assert load_vicinity("vm-0", config, now=timezone.now()) is None
    assert load_vicinity("nobody", config, now=timezone.now()) is None
