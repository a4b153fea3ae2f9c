"""What is around a VM: the host table, the rows and the zone say the same (spec failover, 17.5)."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
from django.utils import timezone

from failover.conf import current_config
from failover.domain.bits import bits_as_rows
from failover.domain.engine import EligibilityEngine
from failover.domain.plan import PlanOptions, ReuseOrder
from failover.domain.shelf import share_limit
from failover.domain.zone_columns import ZoneSnapshot
from failover.models import FailoverReservation
from failover.selectors.vicinity import Vicinity, load_vicinity, open_slots
from failover.selectors.zone import failover_requirements, load_zone
from hosts.models import Instance
from tests.failover.zones import flavor, hosts, require, run, slots, vm
from tests.process_tables import reset_host_table

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


def seen_vm(uuid: str = "vm-0") -> Vicinity:
    seen = load_vicinity(uuid, current_config(failover_requirements()), now=timezone.now())
    assert seen is not None
    return seen


def zone() -> ZoneSnapshot:
    return load_zone("az-a", current_config(failover_requirements()), now=timezone.now())


def opened(seen: Vicinity, options: PlanOptions, *, is_wide: bool = False) -> list[int]:
    stays = np.ones(len(seen.snapshot.members), dtype=np.bool_)
    every = np.ones(len(seen.snapshot.hosts), dtype=np.bool_)
    return list(open_slots(seen, stays, every, options, is_wide=is_wide))


def engine_of(zone: ZoneSnapshot) -> EligibilityEngine:
    members = zone.members
    return EligibilityEngine.from_columns(
        len(zone.hosts),
        zone.vms.host.tolist(),
        zone.slots.host.astype(np.int64),
        members.slot.astype(np.int64),
        members.vm.astype(np.int64),
    )


@pytest.mark.sql("failover_around_vm", "failover_around_slots")
@pytest.mark.parametrize("order", list(ReuseOrder))
@pytest.mark.parametrize("seed", range(4))
def test_what_a_vm_may_join_is_what_the_engine_of_its_zone_allows(
    seed: int, order: ReuseOrder
) -> None:
    grown_zone(seed)
    whole = zone()
    engine, slots = engine_of(whole), whole.slots
    free = whole.hosts.free_memory_bytes()
    for uuid, most in product(("vm-0", "vm-5"), (3, 20)):
        vm, options = whole.vm_row[uuid], PlanOptions(reuse_order=order, max_users=most)
        least = int(whole.vms.asked_memory_bytes[vm])
        limit = share_limit(most, len(whole.hosts), 2)
        allowed = [
            slot
            for slot in bits_as_rows(engine.eligible_slots(vm)).tolist()
            if slots.memory_bytes[slot] >= least and len(engine.slot_users[slot]) < limit
        ]
        rank: dict[ReuseOrder, Callable[[int], tuple[int, ...]]] = {
            ReuseOrder.FEWEST_USERS: lambda slot: (
                int(slots.memory_bytes[slot]),
                len(engine.slot_users[slot]),
                -int(free[slots.host[slot]]),
                slot,
            ),
            ReuseOrder.MOST_USERS: lambda slot: (-len(engine.slot_users[slot]), slot),
            ReuseOrder.OLDEST: lambda slot: (int(slots.memory_bytes[slot]), slot),
        }
        wanted = [int(slots.ids[slot]) for slot in sorted(allowed, key=rank[order])]
        assert opened(seen_vm(uuid), options) == wanted
        assert set(wanted) <= set(opened(seen_vm(uuid), options, is_wide=True))


@pytest.mark.parametrize("is_wide", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_engine_of_what_is_around_a_vm_allows_what_that_of_the_zone_does(
    seed: int, is_wide: bool
) -> None:
    grown_zone(seed)
    whole, seen = zone(), seen_vm()
    allowed = {
        int(whole.slots.ids[slot])
        for slot in bits_as_rows(engine_of(whole).eligible_slots(whole.vm_row["vm-0"])).tolist()
    }
    keys = opened(seen, PlanOptions(), is_wide=is_wide)
    near = seen.with_slots(keys, is_wide=is_wide)
    snapshot = near.snapshot
    rows = len(seen.snapshot.slots)
    assert snapshot.slots.ids.tolist()[:rows] == seen.snapshot.slots.ids.tolist()
    members = len(seen.snapshot.members)
    assert snapshot.members.ids.tolist()[:members] == seen.snapshot.members.ids.tolist()
    for slot in bits_as_rows(engine_of_members(snapshot).eligible_slots(near.vm)).tolist():
        key = int(snapshot.slots.ids[slot])
        assert key in allowed or not snapshot.slots.is_usable[slot]
    usable = snapshot.slots.ids[snapshot.slots.is_usable].tolist()
    assert set(usable) == {*keys, *seen.snapshot.slots.ids.tolist()}


def engine_of_members(snapshot: ZoneSnapshot) -> EligibilityEngine:
    """Return the engine with VMs where their reservations say that they are."""
    host = snapshot.vms.host.copy()
    host[snapshot.members.vm] = snapshot.members.joined_host
    return engine_of(replace(snapshot, vms=replace(snapshot.vms, host=host)))


def test_reservation_that_is_not_usable_any_more_is_not_joined() -> None:
    grown_zone(1)
    seen = seen_vm()
    key = opened(seen, PlanOptions())[0]
    FailoverReservation.objects.filter(reservation_id=key).update(state="consuming")
    snapshot = seen.with_slots([key], is_wide=False).snapshot
    assert not snapshot.slots.is_usable[snapshot.slots.ids == key].any()


def test_hosts_that_hold_most_are_known_where_new_reservations_go_there(settings: Any) -> None:
    chosen = settings.HEADROOM.failover.model_copy(update={"consolidate": True})
    settings.HEADROOM = settings.HEADROOM.model_copy(update={"failover": chosen})
    grown_zone(1)
    whole, held = zone(), seen_vm().snapshot.slots_held
    assert held is not None
    assert held.tolist() == np.bincount(whole.slots.host, minlength=len(whole.hosts)).tolist()


def test_vm_without_a_host_has_no_vicinity() -> None:
    grown_zone(2)
    Instance.objects.filter(openstack_id="vm-0").update(host=None)
    config = current_config(failover_requirements())
    assert load_vicinity("vm-0", config, now=timezone.now()) is None
    assert load_vicinity("nobody", config, now=timezone.now()) is None
