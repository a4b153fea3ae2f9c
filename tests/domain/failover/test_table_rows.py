"""Rows of small tables: fitting, graphs, order, joining, queries (spec failover, 8.4-8.5, 10, 11).

Longer tables have modules of their own: rules in ``test_rules``, patterns, sizes and rhythm in
``test_small_tables``, cleaning in ``test_planner``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from capacity.groups.flavor_groups import FlavorSpec
from capacity.ledger.slot_request import SlotAsk, VMFacts, slot_request
from capacity.nova.nova_call import kvm_pipeline
from failover.domain.cleaning import stale_members
from failover.domain.covering import largest_first
from failover.domain.drill_columns import best_bound, coverage_costs
from failover.domain.graph import DependencyGraph
from failover.domain.patterns import required_counts
from failover.domain.shelf import share_limit
from failover.domain.slots import SlotUser
from failover.eligibility import find_eligible_reservations
from scheduling.resources import ZERO
from tests.domain.failover.oracle import slots_of, vm_at
from tests.domain.failover.zones import zone_of

GIB = 1 << 30
G4 = "r1@5{v1@1}, r2@6{v1@1,v2@2}, r3@7{v2@2,v3@3,v4@4}"


@pytest.mark.parametrize(
    ("vm_gib", "slot_gib", "expected"),
    [
        pytest.param(8, 4, [], id="F8"),
        pytest.param(4, 4, ["r1"], id="F8, just large enough"),
    ],
)
def test_reservation_is_found_if_it_is_large_enough(
    vm_gib: int, slot_gib: int, expected: list[str]
) -> None:
    vm = vm_at("v1@1", memory_bytes=vm_gib * GIB)
    found = find_eligible_reservations(vm, slots_of("r1@2{}", memory_bytes=slot_gib * GIB))
    assert [slot.name for slot in found] == expected


def graph(text: str) -> DependencyGraph:
    return DependencyGraph.build(slots_of(text))


def add_v1_to_r1(one: DependencyGraph) -> None:
    one.add("v1", "1", "r1", "2")


def add_v1_to_r2(one: DependencyGraph) -> None:
    one.add("v1", "1", "r2", "3")


def remove_v1_from_r1(one: DependencyGraph) -> None:
    one.remove("v1", "r1", "2")


def add_and_remove_v5(one: DependencyGraph) -> None:
    one.add("v5", "8", "r2", "6")
    one.remove("v5", "r2", "6")


def add_and_remove_v(one: DependencyGraph) -> None:
    one.add("v", "0", "rA", "7")
    one.remove("v", "rA", "7")


@pytest.mark.parametrize(
    ("start", "operation", "expected"),
    [
        pytest.param("", add_v1_to_r1, "r1@2{v1@1}", id="G6"),
        pytest.param("r1@2{v1@1}", add_v1_to_r2, "r1@2{v1@1}, r2@3{v1@1}", id="G7"),
        pytest.param("r1@2{v1@1}, r2@3{v1@1}", remove_v1_from_r1, "r1@2{}, r2@3{v1@1}", id="G8"),
        pytest.param(G4, add_and_remove_v5, G4, id="G9"),
        pytest.param("r1@7{v@0}, rA@7{}", add_and_remove_v, "r1@7{v@0}, rA@7{}", id="G10"),
    ],
)
def test_graph_that_changed_equals_one_built_anew(
    start: str, operation: Callable[[DependencyGraph], None], expected: str
) -> None:
    changed = graph(start)
    operation(changed)
    assert changed == graph(expected)


@pytest.mark.parametrize(
    ("text", "vm", "slot_hosts", "vm_host"),
    [
        pytest.param("r1@3{v1@1}, r2@4{v1@1,v2@2}", "v1", {"3": 1, "4": 1}, "1", id="G3"),
        pytest.param(G4, "v2", {"6": 1, "7": 1}, "2", id="G4"),
        pytest.param("r1@5{v1@old}, r2@6{v1@new,v2@2}", "v1", {"5": 1, "6": 1}, "new", id="G5"),
        pytest.param("r1@2{}, r2@3{v1@1}", "v1", {"3": 1}, "1", id="G8"),
        pytest.param("r1@7{v@0}, rA@7{}", "v", {"7": 1}, "0", id="G10"),
    ],
)
def test_graph_knows_where_a_vm_is_and_where_it_could_go(
    text: str, vm: str, slot_hosts: dict[str, int], vm_host: str
) -> None:
    known = graph(text)
    assert known.vm_slot_hosts[vm] == slot_hosts
    assert known.vm_hosts[vm] == vm_host


@pytest.mark.parametrize(
    ("vms", "active", "slots", "written"),
    [
        pytest.param("v1@1 v2@2", "", "r1@3{v1@1,v2@2}", 0, id="R1"),
        pytest.param("v1@1", "", "r1@3{v1@1,v2@2}", 1, id="R2"),
        pytest.param("v1@1 v2@4", "", "r1@3{v1@1,v2@2}", 1, id="R3"),
        pytest.param("v1@1 v2@2", "", "r1@3{v1@1}, r2@4{v2@2,v3@3}", 1, id="R4"),
        pytest.param("", "", "r1@3{v1@1,v2@2}", 1, id="R5"),
        pytest.param("v1@1", "", "", 0, id="R6"),
        pytest.param("v1@1", "", "r1@3{}", 0, id="R7"),
        pytest.param("v1@1 v2@5 v4@4", "", "r1@6{v1@1,v2@2}, r2@7{v3@3,v4@4}", 2, id="R8"),
        pytest.param("v1@1", "v1 v2", "r1@3{v1@1,v2@2}", 0, id="R9"),
        pytest.param("", "v1 v2 v3", "r1@4{v1@1,v2@2}, r2@5{v3@3}", 0, id="R10"),
        pytest.param("v1@1", "v1 v2", "r1@4{v1@1,v2@2,v3@3}", 1, id="R11"),
        pytest.param("v1@1 v2@5", "v1 v2", "r1@3{v1@1,v2@2}", 1, id="R12"),
    ],
)
def test_reservations_that_lose_stale_users_are_as_many_as_in_the_table(
    vms: str, active: str, slots: str, written: int
) -> None:
    placed = dict(text.split("@") for text in vms.split())
    snapshot = zone_of("123456789", placed, slots_of(slots), seen=active.split())
    is_stale, _, _ = stale_members(snapshot)
    assert len(np.unique(snapshot.members.slot[is_stale])) == written


@pytest.mark.parametrize(
    ("vm", "slots", "expected"),
    [
        pytest.param("vm", "r1@1{vm@9}, r2@2{vm@9}, r3@3{vm@9}", 3, id="in three"),
        pytest.param("vm", "r1@1{}", 0, id="no users"),
        pytest.param("vm", "r1@1{other@8}", 0, id="others only"),
    ],
)
def test_reservations_of_a_vm_are_counted(vm: str, slots: str, expected: int) -> None:
    snapshot = zone_of("123456789", {"vm": "9", "other": "8"}, slots_of(slots))
    assert snapshot.cover[snapshot.vm_row[vm]] == expected


@pytest.mark.parametrize(
    ("memory", "vcpus", "expected"),
    [
        pytest.param({"a": 4, "b": 16, "c": 8}, {}, "bca", id="largest first"),
        pytest.param({"a": 8, "b": 8, "c": 8}, {"c": 9}, "cab", id="more vcpus first"),
        pytest.param({"c": 8, "b": 8, "a": 8}, {}, "abc", id="by uuid"),
        pytest.param({"a": 0, "b": 8, "c": 0}, {}, "bac", id="no memory counts as zero"),
    ],
)
def test_vms_are_handled_largest_first(
    memory: dict[str, int], vcpus: dict[str, int], expected: str
) -> None:
    snapshot = zone_of("123", dict.fromkeys("abc", "1"), vm_gib=memory)
    counts = np.array([vcpus.get(uuid, 4) for uuid in snapshot.vms.uuids], dtype=np.int64)
    snapshot = replace(snapshot, vms=replace(snapshot.vms, vcpus=counts))
    order = largest_first(snapshot, np.arange(3))
    assert "".join(snapshot.vms.uuids[row] for row in order) == expected


@pytest.mark.parametrize(
    ("before", "vm", "after"),
    [
        pytest.param("res@2{}", "vm1@1", {"vm1": "1"}, id="no users"),
        pytest.param("res@2{vm2@3}", "vm1@1", {"vm2": "3", "vm1": "1"}, id="one user"),
    ],
)
def test_joining_leaves_the_original_untouched(before: str, vm: str, after: dict[str, str]) -> None:
    (original,) = slots_of(before)
    newcomer = vm_at(vm)
    joined = original.joined(SlotUser(vm_uuid=newcomer.vm_uuid, host=newcomer.host))
    assert {user.vm_uuid: user.host for user in joined.users} == after
    assert [original] == slots_of(before)


@pytest.mark.parametrize(
    ("hypervisor", "expected"),
    [
        pytest.param("QEMU", {"img_hv_type": "kvm"}, id="QEMU"),
        pytest.param("qemu", {"img_hv_type": "kvm"}, id="qemu"),
        pytest.param("CH", {"img_hv_type": "kvm"}, id="CH"),
        pytest.param("ch", {"img_hv_type": "kvm"}, id="ch"),
        pytest.param("VMware vCenter Server", {"hypervisor_type": "vmware"}, id="VMware"),
        pytest.param("Ironic", {"hypervisor_type": "baremetal"}, id="Ironic"),
        pytest.param("", {"img_hv_type": "kvm"}, id="missing"),
        pytest.param("Xen", None, id="anything else"),
    ],
)
def test_image_is_made_up_from_the_hypervisor_type(
    hypervisor: str, expected: dict[str, str] | None
) -> None:
    ask = SlotAsk(
        slot_name="vm",
        flavor=FlavorSpec(name="f", vcpus=1, memory_bytes=1),
        slot=ZERO,
        zone="",
        project_id="",
        vm=VMFacts(hypervisor_type=hypervisor),
    )
    assert slot_request(ask).image_properties == expected


@pytest.mark.parametrize(
    ("specs", "expected"),
    [
        pytest.param({}, "kvm-general-purpose-load-balancing", id="none"),
        pytest.param(
            {"trait:CUSTOM_HANA_EXCLUSIVE_HOST": "required"}, "kvm-hana-bin-packing", id="required"
        ),
        pytest.param(
            {"trait:CUSTOM_HANA_EXCLUSIVE_HOST": "Required"},
            "kvm-hana-bin-packing",
            id="other case",
        ),
        pytest.param(
            {"trait:CUSTOM_HANA_EXCLUSIVE_HOST": "forbidden"},
            "kvm-general-purpose-load-balancing",
            id="forbidden",
        ),
    ],
)
def test_hana_flavors_are_packed_and_others_spread(specs: dict[str, str], expected: str) -> None:
    assert kvm_pipeline(specs) == expected


def test_leaving_what_one_is_not_in_changes_nothing() -> None:
    known = graph(G4)
    known.remove("v1", "r3", "7")
    known.remove("nobody", "r1", "5")
    assert known == graph(G4)


def test_counts_are_those_of_each_flavor_once() -> None:
    counts = required_counts({"m1.*": 2}, ["m1.large", "m2.small", "m1.large"])
    assert counts == {"m1.large": 2, "m2.small": 0}


def test_sharing_is_bound_by_policy_alone_where_nothing_is_required() -> None:
    assert share_limit(20, 5, 0) == 20


def test_bound_of_a_zone_is_the_largest_of_its_classes() -> None:
    snapshot = zone_of("1234", {"a": "1", "b": "2"}, required=1, vm_gib={"a": 4, "b": 16})
    costs = coverage_costs(snapshot)
    assert best_bound(costs) == max(cost.bounds.best for cost in costs) >= 16 * GIB
    assert best_bound(()) == 0
