"""Worked tables of the safety rules (spec failover, 7.6, 7.7, 8)."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from failover.domain.graph import DependencyGraph
from failover.domain.rules import rule_breakers
from failover.domain.slots import FailoverSlot, SlotUser
from failover.eligibility import (
    check_vms_still_eligible,
    find_eligible_reservations,
    fits,
    is_vm_eligible_for_reservation,
)
from hosts.domain.vm import VM
from tests.calls import calls_of
from tests.domain.failover.oracle import five_rules_hold, may_join, slots_of, vm_at

GIB = 1 << 30

JOINS = [
    pytest.param("v1@1", "r1@2{}", "", True, id="E01"),
    pytest.param("v1@1", "rN@2{}", "rO@3{v2@2}", True, id="E02"),
    pytest.param("v2@2", "r1@3{v1@1}", "", True, id="E03"),
    pytest.param("v1@1", "r1@2{v1@1}", "", False, id="E04"),
    pytest.param("v1@1", "r1@1{}", "", False, id="E05"),
    pytest.param("v1@1", "r1@1{v2@2}", "", False, id="E06"),
    pytest.param("v1@1", "r2@3{}", "r1@3{v1@1}", False, id="E07"),
    pytest.param("v1@1", "r2@4{}", "r1@3{v1@1}", True, id="E08"),
    pytest.param("v1@1", "r3@3{}", "r1@3{v1@1}, r2@4{v1@1}", False, id="E09"),
    pytest.param("v1@1", "r3@5{}", "r1@3{v1@1}, r2@4{v1@1}", True, id="E10"),
    pytest.param("v1@1", "r1@3{v2@1}", "", False, id="E11"),
    pytest.param("v1@1", "r1@3{v2@2}", "", True, id="E12"),
    pytest.param("v3@3", "r1@2{v1@1}", "", True, id="E13"),
    pytest.param("v3@3", "r2@5{v1@1}", "r1@1{v3@3}", False, id="E14"),
    pytest.param("v1@1", "r2@3{v2@2}", "r1@2{v1@1}", False, id="E15"),
    pytest.param("va@1", "rk@3{vb@2}", "rl@2{va@1}, rm@4{vb@2}", False, id="E16"),
    pytest.param("v2@2", "r1@1{}", "r3@3{v1@1,v2@2}, r4@4{v1@1}", False, id="E17"),
    pytest.param("v1@1", "r2@4{v3@2}", "r1@3{v1@1,v2@2}", False, id="E18"),
    pytest.param("va@1", "rk@2{vb@4}", "rm@1{vb@4}, rn@1{vc@4}, rl@3{va@1,vc@4}", False, id="E19"),
    pytest.param("v2@2", "r5@5{v1@1}", "r4@4{v1@1,v2@2,v3@3}", False, id="E20"),
    pytest.param("v2@2", "r4@4{v1@1}", "r3@3{v1@1,v2@2}", False, id="E21"),
    pytest.param("v2@2", "r4@4{v1@1}", "r3@3{v1@1}, r5@5{v2@2}", True, id="E22"),
    pytest.param("v2@2", "r1@1{v3@3}", "r3@3{v1@1,v2@2}, r6@6{v1@1,v3@3,v4@4}", False, id="E23"),
    pytest.param("v3@3", "rf@1{v2@2}", "r1@4{v1@1,v3@3}, r2@5{v1@1,v2@2}", False, id="E24"),
    pytest.param("v3@3", "r2@2{v1@1}", "r1@1{v3@3}, r3@3{v1@1,v2@2,v4@4}", False, id="E25"),
    pytest.param("v3@3", "r2@2{v1@1,v4@4}", "r1@1{v3@3}, r6@6{v1@1,v2@2}", False, id="E26"),
    pytest.param("v2@2", "rA@3{}", "", True, id="J01"),
    pytest.param("v2@2", "rA@3{v1@1}", "", True, id="J02"),
    pytest.param("v3@3", "rA@4{v1@1}", "rB@5{v1@1,v3@3}", False, id="J03"),
    pytest.param("v3@2", "rB@4{v1@1}", "rA@3{v1@1,v2@2}, rC@5{v2@2}", False, id="J04"),
    pytest.param("v3@3", "rA@4{v1@1,v2@2}", "rB@5{v3@3}", True, id="J05"),
    pytest.param("v2@3", "rA@3{v1@1}", "", False, id="J06"),
    pytest.param("v2@4", "rA@3{v1@1}", "rB@4{v1@1}", False, id="J07"),
    pytest.param("v3@2", "rA@3{v1@1}", "rB@4{v1@1,v2@2}", False, id="J08"),
    pytest.param(
        "v3@3", "rB@5{v1@1}", "rA@4{v1@1,v2@2}, rC@6{v1@1}, rD@7{v2@2}, rE@8{v2@2}", True, id="J09"
    ),
    pytest.param("v3@2", "rB@5{v1@1}", "rA@4{v1@1,v2@2}, rC@6{v1@1}", False, id="J10"),
    pytest.param("v2@5", "rA@4{v1@1}", "rB@5{v1@1}, rC@6{v1@1}", False, id="J11"),
    pytest.param("v3@1", "rC@6{v2@2}", "rA@4{v1@1,v2@2}, rB@5{v1@1}", False, id="J12"),
    pytest.param("v4@4", "rA@5{v1@1,v2@2}", "rB@6{v1@1,v3@3}, rC@7{v2@2,v3@3}", True, id="J13"),
    pytest.param("v4@3", "rA@5{v1@1,v2@2}", "rB@6{v1@1,v3@3}, rC@7{v2@2,v3@3}", False, id="J14"),
]


@pytest.mark.parametrize(("vm", "candidate", "others", "expected"), JOINS)
def test_join_is_allowed_as_in_the_table(
    vm: str, candidate: str, others: str, expected: bool
) -> None:
    (slot,) = slots_of(candidate)
    known = slots_of(others)

    assert is_vm_eligible_for_reservation(vm_at(vm), slot, known) is expected
    assert may_join(vm_at(vm), slot, [*known, slot]) is expected
    assert is_vm_eligible_for_reservation(vm_at(vm), slot, [*known, slot]) is expected


@pytest.mark.parametrize(("vm", "candidate", "others", "expected"), JOINS)
def test_allowed_join_keeps_every_member_eligible(
    vm: str, candidate: str, others: str, expected: bool
) -> None:
    if not expected:
        return
    (slot,) = slots_of(candidate)
    newcomer = vm_at(vm)
    after = slot.joined(SlotUser(vm_uuid=newcomer.vm_uuid, host=newcomer.host, joined_at=99))
    state = [*slots_of(others), after]

    for user in after.users:
        without = after.left([user.vm_uuid])
        rest = [without if one.name == slot.name else one for one in state]
        member = VM(vm_uuid=user.vm_uuid, host=user.host)
        assert is_vm_eligible_for_reservation(member, without, rest)


@pytest.mark.parametrize(
    ("vm", "candidate", "others", "expected"),
    [
        pytest.param("v1@1", "r@3{}", "", True, id="Y1-first"),
        pytest.param("v2@2", "r@3{}", "", True, id="Y1-second"),
        pytest.param("v1@1", "r@3{v2@2}", "", True, id="Y2-one"),
        pytest.param("v2@2", "r@3{v1@1}", "", True, id="Y2-other"),
        pytest.param("v2@2", "r2@3{v1@1}", "r1@2{v1@1}", False, id="Y3-other-joins"),
        pytest.param("v1@1", "r2@3{v1@1}", "r1@2{v1@1}", False, id="Y3-joins-again"),
    ],
)
def test_joins_are_symmetric(vm: str, candidate: str, others: str, expected: bool) -> None:
    (slot,) = slots_of(candidate)
    assert is_vm_eligible_for_reservation(vm_at(vm), slot, slots_of(others)) is expected


@pytest.mark.parametrize(
    ("vm", "slots", "expected"),
    [
        pytest.param("v1@1", "", [], id="F1"),
        pytest.param("v2@2", "r1@3{v1@1}", ["r1"], id="F2"),
        pytest.param("v3@3", "r1@1{v1@2}, r2@2{v2@1}", ["r1", "r2"], id="F3"),
        pytest.param("v1@1", "r1@1{}", [], id="F4"),
        pytest.param("v1@1", "r1@2{v1@1}", [], id="F5"),
        pytest.param("v1@1", "r1@2{v2@1}, r2@3{v3@2}", ["r2"], id="F6"),
        pytest.param("v@0", "r1@7{v@0}, rA@7{}, rB@8{}", ["rB"], id="F7"),
    ],
)
def test_eligible_reservations_are_found_in_order(vm: str, slots: str, expected: list[str]) -> None:
    found = find_eligible_reservations(vm_at(vm), slots_of(slots))
    assert [slot.name for slot in found] == expected


def test_too_small_reservation_is_not_found() -> None:
    vm = vm_at("v1@1", memory_bytes=8 * GIB)
    assert find_eligible_reservations(vm, slots_of("r1@2{}", memory_bytes=4 * GIB)) == []


@pytest.mark.parametrize(
    ("vm", "slot", "expected"),
    [
        pytest.param((4 * GIB, 2), (4 * GIB, 2), True, id="equal"),
        pytest.param((2 * GIB, 1), (4 * GIB, 2), True, id="smaller"),
        pytest.param((8 * GIB, 2), (4 * GIB, 2), False, id="more memory"),
        pytest.param((4 * GIB, 4), (4 * GIB, 2), False, id="more vcpus"),
        pytest.param((None, None), (4 * GIB, 2), True, id="nothing asked"),
        pytest.param((4 * GIB, 2), (None, 2), False, id="no memory given"),
        pytest.param((4 * GIB, 2), (4 * GIB, None), False, id="no vcpus given"),
    ],
)
def test_vm_fits_as_in_the_table(
    vm: tuple[int | None, int | None], slot: tuple[int | None, int | None], expected: bool
) -> None:
    one = VM(vm_uuid="v", host="1", memory_bytes=vm[0], vcpus=vm[1])
    room = FailoverSlot(name="r", host="2", memory_bytes=slot[0], vcpus=slot[1])
    assert fits(one, room) is expected


@pytest.mark.parametrize(
    ("slots", "vms", "expected"),
    [
        pytest.param("res1@3{vm1@1,vm2@2}", "vm1@1 vm2@2", {}, id="K1"),
        pytest.param("res1@3{vm1@1}", "vm1@3", {"res1": ["vm1"]}, id="K2"),
        pytest.param(
            "res1@3{vm1@1}, res2@4{vm2@2}",
            "vm1@3 vm2@4",
            {"res1": ["vm1"], "res2": ["vm2"]},
            id="K3",
        ),
        pytest.param("res1@3{vm1@1,vm2@2}", "vm1@1", {}, id="K4"),
        pytest.param("r@3{va@1,vb@1}", "va@1 vb@1", {"r": ["vb"]}, id="K5"),
        pytest.param("r@3{va@1,vb@3}", "va@1 vb@3", {"r": ["vb"]}, id="K6"),
        pytest.param("r1@p1{v@h0}, r2@p1{v@h0}", "v@h0", {"r2": ["v"]}, id="K7"),
        pytest.param("r1@3{va@1,vb@2}, r2@4{va@1,vb@2}", "va@1 vb@2", {"r2": ["vb"]}, id="K8"),
    ],
)
def test_only_the_guilty_are_removed(slots: str, vms: str, expected: dict[str, list[str]]) -> None:
    found = check_vms_still_eligible([vm_at(text) for text in vms.split()], slots_of(slots))
    assert found == expected


def graph_of(text: str) -> DependencyGraph:
    return DependencyGraph.build(slots_of(text))


G4 = "r1@5{v1@1}, r2@6{v1@1,v2@2}, r3@7{v2@2,v3@3,v4@4}"


@pytest.mark.parametrize(
    ("slots", "vm", "vm_slots", "users"),
    [
        pytest.param("", "v1", set(), {}, id="G1"),
        pytest.param("r1@1{}", "v1", set(), {"r1": set()}, id="G2"),
        pytest.param(
            "r1@3{v1@1}, r2@4{v1@1,v2@2}",
            "v1",
            {"r1", "r2"},
            {"r1": {"v1"}, "r2": {"v1", "v2"}},
            id="G3",
        ),
        pytest.param(
            G4,
            "v2",
            {"r2", "r3"},
            {"r1": {"v1"}, "r2": {"v1", "v2"}, "r3": {"v2", "v3", "v4"}},
            id="G4",
        ),
    ],
)
def test_graph_is_built_from_reservations(
    slots: str, vm: str, vm_slots: set[str], users: dict[str, set[str]]
) -> None:
    graph = graph_of(slots)
    assert graph.vm_slots.get(vm, set()) == vm_slots
    assert graph.slot_vms == users


def test_graph_takes_the_host_that_it_read_last() -> None:
    graph = graph_of("r1@5{v1@old}, r2@6{v1@new,v2@2}")
    assert graph.vm_slots["v1"] == {"r1", "r2"}
    assert graph.vm_hosts["v1"] == "new"


def test_graph_grows_and_shrinks_without_a_trace() -> None:
    grown = graph_of("r1@2{}")
    grown.add("v1", "1", "r1", "2")
    assert grown == graph_of("r1@2{v1@1}")
    grown.add("v1", "1", "r2", "3")
    assert grown == graph_of("r1@2{v1@1}, r2@3{v1@1}")
    grown.remove("v1", "r1", "2")
    assert grown == graph_of("r1@2{}, r2@3{v1@1}")

    start = graph_of(G4)
    start.add("v5", "8", "r2", "6")
    start.remove("v5", "r2", "6")
    assert start == graph_of(G4)


def test_second_slot_on_a_host_leaves_the_first_where_it_is() -> None:
    start = "r1@7{v@0}, rA@7{}"
    graph = graph_of(start)
    graph.add("v", "0", "rA", "7")
    graph.remove("v", "rA", "7")
    assert graph == graph_of(start)
    assert graph.vm_slot_hosts["v"] == {"7": 1}


hosts = st.sampled_from("123456")


@st.composite
def situations(draw: st.DrawFn) -> list[FailoverSlot]:
    """Any reservations, valid or not, of VMs that each run on one host."""
    homes = {f"v{number}": draw(hosts) for number in range(draw(st.integers(1, 6)))}
    clock = 0
    slots = []
    for number in range(draw(st.integers(1, 5))):
        users = draw(st.lists(st.sampled_from(sorted(homes)), unique=True, max_size=4))
        members = tuple(
            SlotUser(vm_uuid=uuid, host=homes[uuid], joined_at=clock + place)
            for place, uuid in enumerate(users)
        )
        clock += len(users)
        slots.append(FailoverSlot(name=f"r{number}", host=draw(hosts), users=members))
    return slots


def listed_hosts(vm_uuid: str, own_host: str, slots: list[FailoverSlot]) -> list[str]:
    """``L(v)`` of 7.3: own host, hosts of its reservations, hosts of those it shares one with."""
    listed = [own_host]
    for slot in slots:
        if slot.host_of(vm_uuid) is not None:
            listed.append(slot.host)
            listed += [user.host for user in slot.users if user.vm_uuid != vm_uuid]
    return listed


@settings(max_examples=500, deadline=None)
@given(situations())
def test_one_rule_says_what_the_five_rules_say(slots: list[FailoverSlot]) -> None:
    users = {user.vm_uuid: user.host for slot in slots for user in slot.users}
    lists = [listed_hosts(vm, host, slots) for vm, host in users.items()]
    is_different = all(len(listed) == len(set(listed)) for listed in lists)
    assert is_different == five_rules_hold(slots)
    assert bool(rule_breakers(slots)) != five_rules_hold(slots)


@settings(max_examples=500, deadline=None)
@given(situations())
def test_removal_restores_the_rules_and_takes_nothing_needlessly(
    slots: list[FailoverSlot],
) -> None:
    vms = [
        VM(vm_uuid=uuid, host=host)
        for uuid, host in sorted({u.vm_uuid: u.host for s in slots for u in s.users}.items())
    ]
    removed = check_vms_still_eligible(vms, slots)
    left = [slot.left(removed.get(slot.name, ())) for slot in slots]

    assert five_rules_hold(left)
    for slot in slots:
        for user in slot.users:
            if user.vm_uuid in removed.get(slot.name, ()):
                again = [one.joined(user) if one.name == slot.name else one for one in left]
                assert not five_rules_hold(again)


@settings(max_examples=300, deadline=None)
@given(situations(), hosts)
def test_finding_equals_testing_each_reservation_alone(
    slots: list[FailoverSlot], host: str
) -> None:
    newcomer = VM(vm_uuid="new", host=host)
    valid = [replace(slot, users=slot.users[:1]) for slot in slots]
    found = find_eligible_reservations(newcomer, valid)
    alone = [slot for slot in valid if may_join(newcomer, slot, valid)]
    assert found == alone


@settings(max_examples=300, deadline=None)
@given(situations(), hosts, st.integers(0, 6))
def test_one_pair_is_judged_as_the_five_rules_do(
    slots: list[FailoverSlot], host: str, number: int
) -> None:
    vm = VM(vm_uuid=f"v{number}", host=host)
    moved = [
        replace(
            slot,
            users=tuple(
                replace(user, host=host) if user.vm_uuid == vm.vm_uuid else user
                for user in slot.users
            ),
        )
        for slot in slots
    ]
    allowed = [slot for slot in moved if may_join(vm, slot, moved)]

    assert [s for s in moved if is_vm_eligible_for_reservation(vm, s, moved)] == allowed
    assert find_eligible_reservations(vm, moved) == allowed


def test_judging_a_zone_calls_no_function_for_each_vm_or_pair() -> None:
    slots = [
        FailoverSlot(
            name=f"r{number}",
            host=f"h{number}",
            users=tuple(
                SlotUser(vm_uuid=f"v{number * 8 + place}", host=f"h{number + 1 + place}")
                for place in range(8)
            ),
        )
        for number in range(50)
    ]
    vms = [VM(vm_uuid=user.vm_uuid, host=user.host) for slot in slots for user in slot.users]
    newcomer = VM(vm_uuid="new", host="elsewhere")

    assert calls_of(lambda: check_vms_still_eligible(vms, slots)) < len(vms)
    assert calls_of(lambda: rule_breakers(slots)) < len(vms)
    assert calls_of(lambda: is_vm_eligible_for_reservation(newcomer, slots[0], slots)) < len(vms)
