from __future__ import annotations

from typing import Any

import pytest
from django.db import transaction
from hypothesis import given
from hypothesis import strategies as st

from capacity.figures.group_capacity import ensure_fresh
from capacity.ledger.rooms import move_blocks
from capacity.models import (
    CapacityComputation,
    FlavorCapacity,
    FlavorGroup,
    FlavorGroupSettings,
    FlavorGroupSnapshot,
    GroupCapacity,
    HostCapacity,
    Reservation,
    ReservationKind,
)
from commitments.models import Commitment
from hosts.models import Flavor, Host, HostStatus, Instance
from scheduling.resources import GIB, ResourceVector
from tests.examples import few
from tests.factories import make_commitment, make_group, make_host, make_reservation, make_slot
from tests.factories import make_vm as make_running_vm

pytestmark = pytest.mark.django_db

ZONE = "az-a"
EVERY_TABLE = (
    GroupCapacity,
    CapacityComputation,
    Reservation,
    Commitment,
    Instance,
    FlavorGroup,
    FlavorGroupSettings,
    FlavorGroupSnapshot,
    Flavor,
    Host,
)

sizes = st.tuples(st.integers(1, 12), st.integers(1, 6))
hosts = st.lists(
    st.tuples(st.integers(0, 64), st.integers(0, 40), st.sampled_from(["", "A", "B", "AB"])),
    min_size=1,
    max_size=6,
)


@st.composite
def regions(draw: st.DrawFn) -> dict[str, Any]:
    host_list = draw(hosts)
    on_hosts = st.tuples(st.integers(0, len(host_list) - 1), sizes)
    return {
        "hosts": host_list,
        "disabled": draw(st.sets(st.integers(0, len(host_list) - 1), max_size=2)),
        "groups": draw(
            st.lists(
                st.tuples(st.lists(sizes, min_size=1, max_size=3), st.sampled_from(["", "A", "B"])),
                min_size=1,
                max_size=4,
            )
        ),
        "vms": draw(st.lists(st.tuples(on_hosts, st.integers(0, 3)), max_size=6)),
        "slots": draw(st.lists(st.tuples(on_hosts, st.integers(0, 3)), max_size=4)),
        "failover": draw(st.lists(on_hosts, max_size=2)),
    }


def clear() -> None:
    for table in EVERY_TABLE:
        table._default_manager.all().delete()


def traits(letters: str) -> list[str]:
    return [f"CUSTOM_{letter}" for letter in letters]


def make_region(drawn: dict[str, Any]) -> None:
    """Make hosts, groups, VMs, slots and failover reservations; hosts may be over-used."""
    made = [
        make_host(
            f"h{number}",
            memory_gib=memory_gib,
            vcpus=vcpus,
            traits=traits(letters),
            status=HostStatus.DISABLED if number in drawn["disabled"] else HostStatus.ENABLED,
        )
        for number, (memory_gib, vcpus, letters) in enumerate(drawn["hosts"])
    ]
    for number, (flavors, letters) in enumerate(drawn["groups"]):
        make_group(
            f"g{number}",
            flavors=[
                (f"f{number}-{index}", memory_gib * 1024, vcpus)
                for index, (memory_gib, vcpus) in enumerate(flavors)
            ],
        )
        for trait in traits(letters):
            Flavor.objects.filter(name__startswith=f"f{number}-").update(
                extra_specs={"capabilities:hypervisor_type": "qemu", f"trait:{trait}": "required"}
            )
    group_count = len(drawn["groups"])
    for (host, (memory_gib, vcpus)), group in drawn["vms"]:
        make_running_vm(
            host=made[host],
            flavor_name=f"f{group % group_count}-0",
            memory_gib=memory_gib,
            vcpus=vcpus,
        )
    for (host, (memory_gib, vcpus)), group in drawn["slots"]:
        commitment = make_commitment(amount_gib=memory_gib, group=f"g{group % group_count}")
        make_slot(commitment, made[host], memory_gib=memory_gib, vcpus=vcpus)
    for host, (memory_gib, vcpus) in drawn["failover"]:
        make_reservation(made[host], memory_gib=memory_gib, vcpus=vcpus)


def left_on(room: HostCapacity) -> ResourceVector:
    held = sum(getattr(room, f"{kind}_memory_bytes") for kind in ReservationKind.values)
    held_vcpus = sum(getattr(room, f"{kind}_vcpus") for kind in ReservationKind.values)
    return ResourceVector(
        memory_bytes=room.effective_memory_bytes - room.allocated_memory_bytes - held,
        vcpus=room.effective_vcpus - room.allocated_vcpus - held_vcpus,
    ).clamped()


def usable_rooms() -> list[HostCapacity]:
    return list(HostCapacity.objects.filter(host__status=HostStatus.ENABLED).select_related("host"))


@few(10)
@given(drawn=regions())
def test_shares_never_exceed_what_hosts_have_left(drawn: dict[str, Any]) -> None:
    clear()
    make_region(drawn)
    ensure_fresh([ZONE])
    rows = list(GroupCapacity.objects.all())
    left = [left_on(room) for room in usable_rooms()]
    assert len(rows) == len(drawn["groups"])
    assert sum(row.exclusively_free_memory_bytes for row in rows) <= sum(
        room.memory_bytes for room in left
    )
    assert sum(row.exclusively_free_vcpus for row in rows) <= sum(room.vcpus for room in left)
    for row in rows:
        assert row.is_ready
        assert row.exclusively_free_memory_bytes <= row.free_memory_bytes
        assert row.free_memory_bytes <= row.total_memory_bytes
        assert row.free_vcpus <= (row.total_vcpus or 0)


@few(10)
@given(drawn=regions())
def test_every_probe_counts_what_a_slow_look_at_the_rows_counts(drawn: dict[str, Any]) -> None:
    clear()
    make_region(drawn)
    ensure_fresh([ZONE])
    for row in FlavorCapacity.objects.all():
        flavor = Flavor.objects.get(name=row.flavor_name)
        wanted = {key.removeprefix("trait:") for key in flavor.extra_specs if "trait:" in key}
        empty, now = [], []
        for room in usable_rooms():
            if wanted <= set(room.host.traits):
                left = left_on(room)
                empty.append(
                    min(
                        room.effective_memory_bytes // flavor.memory_bytes,
                        room.effective_vcpus // flavor.vcpus,
                    )
                )
                now.append(
                    min(left.memory_bytes // flavor.memory_bytes, left.vcpus // flavor.vcpus)
                )
        assert (row.total_vm_slots, row.total_hosts) == (sum(empty), sum(map(bool, empty)))
        assert (row.placeable_vms, row.placeable_hosts) == (sum(now), sum(map(bool, now)))


@few(10)
@given(
    host_sizes=st.lists(st.integers(1, 16), min_size=1, max_size=4),
    taken=st.integers(0, 8),
    asked=st.integers(1, 16),
)
def test_an_accepted_hold_takes_exactly_its_size_from_a_region_of_one_group(
    host_sizes: list[int], taken: int, asked: int
) -> None:
    clear()
    make_group("g0", flavors=(("small", 1024, 1),))
    made = [
        make_host(f"h{number}", memory_gib=gib, vcpus=gib) for number, gib in enumerate(host_sizes)
    ]
    make_running_vm(host=made[0], memory_gib=min(taken, host_sizes[0]), vcpus=0)
    commitment = make_commitment(amount_gib=asked, group="g0")
    ensure_fresh([ZONE])
    before = GroupCapacity.objects.get()
    hold = ResourceVector(memory_bytes=asked * GIB, vcpus=asked)
    with transaction.atomic():
        refused = move_blocks(ReservationKind.COMMITTED, {made[0].pk: hold})
        if not refused:
            Reservation.objects.create(
                kind=ReservationKind.COMMITTED,
                commitment=commitment,
                slot_index=0,
                zone=ZONE,
                flavor_group_name="g0",
                memory_bytes=hold.memory_bytes,
                vcpus=hold.vcpus,
                blocked_memory_bytes=hold.memory_bytes,
                blocked_vcpus=hold.vcpus,
                target_host=made[0],
                confirmed_host=made[0],
            )
    ensure_fresh([ZONE])
    after = GroupCapacity.objects.get()
    fits = asked + min(taken, host_sizes[0]) <= host_sizes[0]
    assert refused == (() if fits else (made[0].pk,))
    fallen = hold.memory_bytes if fits else 0
    assert before.exclusively_free_memory_bytes - after.exclusively_free_memory_bytes == fallen
    assert before.free_memory_bytes - after.free_memory_bytes == fallen
    assert after.reserved_unused_memory_bytes == fallen
    for row in (before, after):
        reported = (
            row.running_memory_bytes
            + row.reserved_unused_memory_bytes
            + row.exclusively_free_memory_bytes
        )
        assert reported == sum(host_sizes) * GIB
