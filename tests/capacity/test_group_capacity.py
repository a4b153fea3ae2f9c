from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.db import DatabaseError
from django.utils import timezone

from capacity.figures.group_capacity import (
    ensure_fresh,
    ensure_totals,
    refresh_group_capacity,
)
from capacity.models import (
    CapacityComputation,
    FlavorCapacity,
    FlavorGroup,
    FlavorGroupSnapshot,
    GroupCapacity,
)
from commitments.domain.statuses import CommitmentStatus, ResourceType
from hosts.models import Flavor, Host, HostState, HostStatus, Maintenance
from journal.errors import NotReady
from scheduling.resources import GIB
from tests.factories import (
    make_commitment,
    make_group,
    make_host,
    make_reservation,
    make_slot,
    make_vm,
    recount_room,
)

pytestmark = pytest.mark.django_db

ONE_FLAVOR = (("small", 4096, 2),)


def capacity_of(group: str = "hana_1", zone: str = "az-a") -> GroupCapacity:
    return GroupCapacity.objects.get(group_name=group, zone=zone)


def probes_of(group: str = "hana_1", zone: str = "az-a") -> dict[str, tuple[int, int, int, int]]:
    return {
        row.flavor_name: (
            row.total_vm_slots,
            row.total_hosts,
            row.placeable_vms,
            row.placeable_hosts,
        )
        for row in FlavorCapacity.objects.filter(
            group_capacity__group_name=group, group_capacity__zone=zone
        )
    }


def test_one_host_of_one_slot_gives_a_row_with_one_of_everything() -> None:
    make_group(flavors=ONE_FLAVOR)
    make_host("h1", memory_gib=4, vcpus=2)
    ensure_fresh(["az-a"])
    row = capacity_of()
    assert probes_of() == {"small": (1, 1, 1, 1)}
    assert row.exclusively_free_memory_bytes == 4 * GIB
    assert row.exclusively_free_slots == 1
    assert (row.running_instances, row.running_slots) == (0, 0)
    assert (row.smallest_flavor_name, row.is_ready) == ("small", True)
    assert row.ready_reason == "ReconcileSucceeded"
    assert row.computed_at is not None


def test_every_zone_that_was_looked_at_is_told() -> None:
    make_group(flavors=ONE_FLAVOR)
    make_host("h1", zone="az-a", memory_gib=4, vcpus=2)
    make_host("h2", zone="az-b", memory_gib=4, vcpus=2)
    told: list[int] = []
    refresh_group_capacity(progress=told.append)
    refresh_group_capacity(progress=told.append)
    assert told == [1, 1, 1, 1]


@pytest.mark.parametrize(
    ("hosts_gib", "allocated_gib", "blocked_gib", "total", "placeable"),
    [
        pytest.param((4, 8), 0, 0, (3, 2), (3, 2), id="host-1 4 GiB, host-2 8 GiB, empty"),
        pytest.param((8,), 4, 0, (2, 1), (1, 1), id="one host 8 GiB, 4 GiB allocated"),
        pytest.param((12,), 4, 4, (3, 1), (1, 1), id="12 GiB, 4 allocated, 4 blocked"),
    ],
)
def test_probe_scenarios(
    hosts_gib: tuple[int, ...],
    allocated_gib: int,
    blocked_gib: int,
    total: tuple[int, int],
    placeable: tuple[int, int],
) -> None:
    make_group(flavors=ONE_FLAVOR)
    hosts = [
        make_host(f"host-{number}", memory_gib=gib, vcpus=64)
        for number, gib in enumerate(hosts_gib, 1)
    ]
    if allocated_gib:
        make_vm(host=hosts[0], memory_gib=allocated_gib, vcpus=2)
    if blocked_gib:
        make_reservation(hosts[0], memory_gib=blocked_gib, vcpus=2)
    ensure_fresh(["az-a"])
    assert probes_of() == {"small": (*total, *placeable)}


@pytest.mark.parametrize(
    ("slot_gib", "confirmed_gib", "expected_gib", "block_gib"),
    [
        pytest.param(8, 0, 0, 8, id="empty"),
        pytest.param(8, 8, 0, 0, id="full"),
        pytest.param(8, 4, 0, 4, id="half"),
        pytest.param(8, 12, 0, 0, id="grown"),
        pytest.param(8, 4, 6, 6, id="half, and more expected"),
    ],
)
def test_a_slot_takes_its_block_beyond_its_vms(
    slot_gib: int, confirmed_gib: int, expected_gib: int, block_gib: int
) -> None:
    make_group(flavors=(("small", 1024, 1),))
    host = make_host("h1", memory_gib=64, vcpus=1000)
    commitment = make_commitment(amount_gib=slot_gib)
    slot = make_slot(commitment, host, memory_gib=slot_gib, vcpus=slot_gib)
    if confirmed_gib:
        make_vm(host=host, slot=slot, memory_gib=confirmed_gib, vcpus=confirmed_gib)
    if expected_gib:
        make_vm(slot=slot, slot_state="expected", memory_gib=expected_gib, vcpus=expected_gib)
    ensure_fresh(["az-a"])
    row = capacity_of()
    assert row.free_memory_bytes == (64 - confirmed_gib - block_gib) * GIB
    assert row.exclusively_free_slots == 64 - confirmed_gib - block_gib
    assert row.reserved_unused_memory_bytes == block_gib * GIB
    assert row.reserved_unused_slots == block_gib
    assert row.running_memory_bytes == confirmed_gib * GIB


def test_a_slot_in_migration_blocks_both_hosts_and_counts_once_as_reserved() -> None:
    make_group(flavors=(("small", 1024, 1),))
    here, there = make_host("h1", memory_gib=16), make_host("h2", memory_gib=16)
    make_slot(make_commitment(amount_gib=8), here, memory_gib=8, confirmed_host=there)
    ensure_fresh(["az-a"])
    assert capacity_of().free_memory_bytes == 16 * GIB
    assert capacity_of().reserved_unused_memory_bytes == 8 * GIB


@pytest.mark.parametrize("name", ["h1", "h2"])
def test_a_full_slot_in_migration_blocks_each_of_its_hosts(name: str) -> None:
    """Spec liquid, 13.4: 8 GiB with 8 GiB confirmed, target != actual: 8 on each."""
    make_group(flavors=(("small", 1024, 1),))
    here, there = (make_host(host, memory_gib=16, vcpus=100) for host in ("h1", "h2"))
    slot = make_slot(make_commitment(amount_gib=8), here, memory_gib=8, confirmed_host=there)
    make_vm(host=there, slot=slot, memory_gib=8, vcpus=1)
    Host.objects.exclude(name=name).update(status=HostStatus.DISABLED)
    ensure_fresh(["az-a"])
    allocated_gib = 8 if name == "h2" else 0
    assert capacity_of().free_memory_bytes == (16 - allocated_gib - 8) * GIB


def test_failover_reservations_take_room_and_are_not_reserved_for_anyone() -> None:
    make_group(flavors=ONE_FLAVOR)
    host = make_host("h1", memory_gib=16)
    make_reservation(host, memory_gib=8, vcpus=4)
    ensure_fresh(["az-a"])
    assert capacity_of().exclusively_free_slots == 2
    assert capacity_of().reserved_unused_memory_bytes == 0
    assert probes_of()["small"][0] == 4


@pytest.mark.parametrize(
    ("flavors", "hosts", "total_gib", "total_vcpus_wanted"),
    [
        pytest.param((("a", 4096, 2),), [(40, 20)], 40, 20, id="10 x 4/2"),
        pytest.param(
            (("a", 4096, 2), ("b", 32768, 8)),
            [(32, 8), (32, 12)],
            64,
            20,
            id="memory and cores from different flavors",
        ),
        pytest.param(
            (("a", 4096, 200), ("b", 8192, 4)), [(24, 12)], 24, 12, id="none of the smallest"
        ),
        pytest.param((("a", 4096, 2),), [(2, 2)], 0, 0, id="all zero"),
    ],
)
def test_group_total_takes_each_resource_from_its_best_flavor(
    flavors: tuple[tuple[str, int, int], ...],
    hosts: list[tuple[int, int]],
    total_gib: int,
    total_vcpus_wanted: int,
) -> None:
    make_group(flavors=flavors)
    for number, (memory_gib, vcpus) in enumerate(hosts):
        make_host(f"h{number}", memory_gib=memory_gib, vcpus=vcpus)
    ensure_fresh(["az-a"])
    assert capacity_of().total_memory_bytes == total_gib * GIB
    assert capacity_of().total_vcpus == total_vcpus_wanted


@pytest.mark.parametrize(
    "fields",
    [
        {"status": HostStatus.DISABLED},
        {"state": HostState.DOWN},
        {"maintenance": Maintenance.MANUAL},
        {"hypervisor_type": "ironic"},
    ],
    ids=["disabled", "down", "in maintenance", "other hypervisor"],
)
def test_a_host_that_takes_nothing_new_counts_in_no_probe(fields: dict[str, Any]) -> None:
    make_group(flavors=ONE_FLAVOR)
    host = make_host("h1", memory_gib=8, **fields)
    make_vm(host=host, memory_gib=4, vcpus=2)
    make_host("h2", memory_gib=4)
    ensure_fresh(["az-a"])
    assert probes_of() == {"small": (1, 1, 1, 1)}
    assert capacity_of().running_instances == 1


def test_required_traits_narrow_the_hosts_of_a_flavor() -> None:
    make_group(flavors=ONE_FLAVOR)
    Flavor.objects.update(
        extra_specs={"capabilities:hypervisor_type": "qemu", "trait:CUSTOM_GPU": "required"}
    )
    make_host("h1", memory_gib=8)
    make_host("h2", memory_gib=4, traits=["CUSTOM_GPU"])
    ensure_fresh(["az-a"])
    assert probes_of() == {"small": (1, 1, 1, 1)}


def test_committed_slots_count_accepted_else_requested_memory_of_live_commitments() -> None:
    make_group(flavors=ONE_FLAVOR)
    make_group("other", flavors=(("o", 4096, 2),))
    make_host("h1")
    accepted = make_commitment(amount_gib=80)
    accepted.accepted_amount = 8 * GIB
    accepted.save()
    make_commitment(amount_gib=4, state=CommitmentStatus.GUARANTEED, is_accepted=False)
    make_commitment(amount_gib=16, state=CommitmentStatus.PLANNED)
    make_commitment(requested_amount=16, resource_type=ResourceType.CORES)
    make_commitment(amount_gib=16, zone="az-b")
    make_commitment(amount_gib=7, group="other")
    make_commitment(amount_gib=16, end_time=timezone.now() - timedelta(seconds=1))
    ensure_fresh(["az-a"])
    assert capacity_of().committed_slots == 3
    assert capacity_of().committed_memory_bytes == 12 * GIB
    assert capacity_of("other").committed_slots == 1


def test_running_vms_count_at_their_host_whatever_zone_they_name() -> None:
    make_group()
    host = make_host("h1", zone="az-a")
    make_host("h2", zone="az-b")
    make_vm(host=host, flavor_name="small", memory_gib=4, vcpus=1)
    make_vm(host=host, flavor_name="large", memory_gib=16, vcpus=4, zone="az-b")
    make_vm(host=host, flavor_name="small", memory_gib=4, vcpus=1, status="SHUTOFF")
    make_vm(host=host, flavor_name="small", memory_gib=4, vcpus=1, status="SHELVED_OFFLOADED")
    make_vm(host=host, flavor_name="unknown", memory_gib=4, vcpus=1)
    make_vm(host=None, flavor_name="small", memory_gib=4, vcpus=1, zone="az-a")
    ensure_fresh(["az-a", "az-b"])
    row = capacity_of()
    assert (row.running_instances, row.running_slots) == (3, 6)
    assert (row.running_memory_bytes, row.running_vcpus) == (24 * GIB, 6)
    assert capacity_of(zone="az-b").running_instances == 0
    done = CapacityComputation.objects.get(zone="az-a")
    assert (done.misplaced_vms, done.ungrouped_vms) == (1, 1)


@pytest.mark.parametrize(
    "source",
    [
        "capacity.figures.group_capacity.current_host_table",
        "capacity.figures.group_capacity.reserved_unused",
        "capacity.hooks.hooks.commitment_figures.committed_slots",
    ],
)
def test_a_read_that_fails_fails_the_cycle_and_keeps_every_number(
    monkeypatch: pytest.MonkeyPatch, source: str
) -> None:
    """Spec liquid, 13.3 and 20 row 13: without the reservations capacity would be overstated."""
    make_group(flavors=ONE_FLAVOR)
    host = make_host("h1", memory_gib=16)
    ensure_fresh(["az-a"])
    before = GroupCapacity.objects.values().get()
    make_reservation(host, memory_gib=8)

    def fail(*_: object, **__: object) -> None:
        raise DatabaseError

    with monkeypatch.context() as patched:
        patched.setattr(source, fail)
        with pytest.raises(DatabaseError):
            refresh_group_capacity()
    assert GroupCapacity.objects.values().get() == before
    ensure_fresh(["az-a"])
    assert capacity_of().exclusively_free_slots == 2


def test_two_zones_without_candidates_give_two_ready_rows_of_zeros() -> None:
    make_group(flavors=ONE_FLAVOR)
    make_host("h1", zone="az-a", memory_gib=1)
    make_host("h2", zone="az-b", memory_gib=1)
    refreshed = refresh_group_capacity()
    assert [(entry.zone, entry.outcome) for entry in refreshed] == [
        ("az-a", "computed"),
        ("az-b", "computed"),
    ]
    for zone in ("az-a", "az-b"):
        row = capacity_of(zone=zone)
        assert row.is_ready
        assert (row.total_memory_bytes, row.total_vcpus) == (0, 0)
        assert (row.free_memory_bytes, row.exclusively_free_slots) == (0, 0)


def test_missing_flavor_groups_fail_the_cycle() -> None:
    make_host("h1")
    with pytest.raises(NotReady):
        ensure_fresh(["az-a"])
    FlavorGroupSnapshot.objects.create(is_ready=False)
    with pytest.raises(NotReady):
        refresh_group_capacity()
    assert not GroupCapacity.objects.exists()


def test_a_smallest_flavor_without_memory_gives_no_row() -> None:
    make_group(flavors=(("empty", 0, 1),))
    make_host("h1")
    ensure_fresh(["az-a"])
    assert not GroupCapacity.objects.exists()


def test_zones_without_hosts_get_no_row() -> None:
    make_group()
    make_host("h1", zone="az-a")
    ensure_fresh(["az-x", ""])
    assert not GroupCapacity.objects.exists()
    assert not CapacityComputation.objects.exists()


def break_flavor(name: str) -> None:
    Flavor.objects.filter(name=name).update(extra_specs={"trait:CUSTOM_X": 1})


def test_a_failed_probe_creates_no_row() -> None:
    make_group(flavors=ONE_FLAVOR)
    make_host("h1")
    break_flavor("small")
    refreshed = refresh_group_capacity()
    assert refreshed[0].failed_groups == ("hana_1",)
    assert not GroupCapacity.objects.exists()


def test_a_failed_probe_keeps_the_numbers_and_takes_readiness_from_that_group_alone() -> None:
    make_group(flavors=ONE_FLAVOR)
    make_group("other", flavors=(("o", 4096, 2),))
    make_host("h1", memory_gib=16)
    ensure_fresh(["az-a"])
    before = capacity_of()
    break_flavor("small")
    make_host("h2", memory_gib=16)
    ensure_fresh(["az-a"])
    after = capacity_of()
    assert not after.is_ready
    assert after.ready_reason == "ReconcileFailed"
    assert "filter_has_requested_traits" in after.ready_message
    assert after.total_memory_bytes == before.total_memory_bytes
    assert after.exclusively_free_slots == before.exclusively_free_slots
    other = capacity_of("other")
    assert other.is_ready
    assert (other.exclusively_free_slots, other.exclusively_free_memory_bytes) == (2, 8 * GIB)
    assert (other.total_memory_bytes, other.free_memory_bytes) == (32 * GIB, 32 * GIB)
    Flavor.objects.filter(name="small").update(extra_specs={"capabilities:hypervisor_type": "qemu"})
    ensure_fresh(["az-a"])
    assert capacity_of().is_ready
    assert capacity_of().ready_message == ""
    shares = {name: capacity_of(name).exclusively_free_slots for name in ("hana_1", "other")}
    assert shares == {"hana_1": 4, "other": 4}


def test_the_share_of_others_falls_with_the_room_while_a_probe_fails() -> None:
    make_group(flavors=ONE_FLAVOR)
    make_group("other", flavors=(("o", 4096, 2),))
    host = make_host("h1", memory_gib=16)
    ensure_fresh(["az-a"])
    break_flavor("small")
    for _ in range(3):
        make_vm(host=host, flavor_name="o", memory_gib=4, vcpus=2)
    recount_room(host)
    ensure_fresh(["az-a"])
    assert capacity_of("other").exclusively_free_slots == 1


def test_running_falls_to_zero_when_the_vms_are_gone() -> None:
    make_group(flavors=ONE_FLAVOR)
    host = make_host("h1")
    vms = [make_vm(host=host, memory_gib=4, vcpus=2) for _ in range(5)]
    ensure_fresh(["az-a"])
    assert capacity_of().running_instances == 5
    for vm in vms:
        vm.delete()
    recount_room(host)
    ensure_fresh(["az-a"])
    assert capacity_of().running_instances == 0
    assert capacity_of().running_memory_bytes == 0


def test_rows_of_groups_that_are_gone_go_and_retired_ones_have_what_they_use_and_hold() -> None:
    make_group("gone", flavors=(("g", 4096, 1),))
    make_group("retired", flavors=(("r", 4096, 1),))
    make_group("stays", flavors=(("s", 4096, 1),))
    host = make_host("h1")
    make_vm(host=host, flavor_name="r", memory_gib=4, vcpus=1)
    commitment = make_commitment(group="retired", amount_gib=8)
    make_slot(commitment, host, flavor_name="r", memory_gib=8, vcpus=2)
    ensure_fresh(["az-a"])
    before = capacity_of("retired")
    assert FlavorCapacity.objects.filter(group_capacity=before).exists()
    FlavorGroup.objects.filter(name="gone").delete()
    FlavorGroup.objects.filter(name="retired").update(is_retired=True)
    ensure_fresh(["az-a"])
    assert {row.group_name: row.is_ready for row in GroupCapacity.objects.all()} == {
        "retired": True,
        "stays": True,
    }
    row = capacity_of("retired")
    assert row.ready_reason == "FlavorGroupRetired"
    assert (row.running_instances, row.running_slots) == (1, 1)
    assert (row.reserved_unused_slots, row.reserved_unused_vcpus) == (2, 2)
    assert (row.free_memory_bytes, row.exclusively_free_slots) == (0, 0)
    assert row.total_vcpus == before.total_vcpus
    assert row.total_vcpus
    assert not FlavorCapacity.objects.filter(group_capacity=row).exists()
    stays = capacity_of("stays")
    assert stays.exclusively_free_memory_bytes == stays.free_memory_bytes > 0


def test_rows_of_zones_without_hosts_go_with_the_next_refresh() -> None:
    make_group()
    host = make_host("h1", zone="az-a")
    make_host("h2", zone="az-b")
    refresh_group_capacity()
    Host.objects.filter(pk=host.pk).update(zone="az-b")
    host.refresh_from_db()
    recount_room(host)
    refreshed = refresh_group_capacity()
    assert [(entry.zone, entry.outcome) for entry in refreshed] == [
        ("az-a", "removed"),
        ("az-b", "computed"),
    ]
    assert set(GroupCapacity.objects.values_list("zone", flat=True)) == {"az-b"}
    assert set(CapacityComputation.objects.values_list("zone", flat=True)) == {"az-b"}


def test_flavors_that_leave_a_group_leave_its_row() -> None:
    group = make_group()
    make_host("h1")
    ensure_fresh(["az-a"])
    group.members.filter(flavor__name="medium").delete()
    ensure_fresh(["az-a"])
    assert set(probes_of()) == {"small", "large"}


def test_totals_are_probed_when_they_are_missing() -> None:
    make_group(flavors=ONE_FLAVOR)
    make_host("h1", memory_gib=8, vcpus=4)
    assert not GroupCapacity.objects.exists()
    ensure_totals("az-a")
    assert capacity_of().total_vcpus == 4
    GroupCapacity.objects.update(total_vcpus=None)
    ensure_totals("az-a")
    assert capacity_of().total_vcpus == 4


def test_the_example_of_the_documentation_holds() -> None:
    make_group(flavors=(("small", 4096, 1), ("large", 16384, 4)))
    host = make_host("h1", memory_gib=64, vcpus=32)
    make_host("h2", memory_gib=64, vcpus=32)
    make_vm(host=host, flavor_name="large", memory_gib=16, vcpus=4)
    make_slot(make_commitment(amount_gib=8), host, memory_gib=8, vcpus=2)
    ensure_fresh(["az-a"])
    row = capacity_of()
    assert row.total_memory_bytes == 128 * GIB
    assert (row.running_memory_bytes, row.running_instances, row.running_slots) == (16 * GIB, 1, 4)
    assert (row.reserved_unused_memory_bytes, row.reserved_unused_slots) == (8 * GIB, 2)
    assert row.free_memory_bytes == 104 * GIB
    assert (row.exclusively_free_memory_bytes, row.exclusively_free_slots) == (104 * GIB, 26)
