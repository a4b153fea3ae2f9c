from __future__ import annotations

from dataclasses import replace
from itertools import combinations, permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.failover_zones import RoomyChooser, model_zone
from failover.domain.covering import plan_cover
from failover.domain.drill import (
    Assignment,
    DrillPolicy,
    DrillResult,
    DrillVerificationError,
    UnprotectedReason,
    simulate,
    verify_drill,
)
from failover.domain.drill_columns import drill_state_of
from failover.domain.drill_report import (
    BlastRadius,
    blast_radii,
    drill_hosts,
    drill_pairs,
    drill_racks,
)
from failover.domain.drill_state import (
    DrillHost,
    DrillSlot,
    DrillState,
    DrillVM,
    FailureSet,
    UnknownFailureDomainError,
)
from failover.domain.plan import CleaningPlan, PlanOptions, ReuseOrder
from failover.domain.shadow import zone_after
from scheduling.resources import ResourceVector
from tests.domain.failover.drill_worlds import (
    BIG,
    columns_of,
    gib,
    rules_hold,
    states,
    world,
)

S3 = "rA@3{a@1,b@2} rB@4{a@1} rC@5{b@2}"
S7 = "rA@3{a@1,b@2} rB@4{a@1,c@5} rC@6{b@2,c@5}"


def given_slots(result: DrillResult) -> dict[str, str]:
    return {row.vm: row.slot for row in result.assignments}


@pytest.mark.parametrize(
    ("slots", "failed", "expected", "unprotected"),
    [
        pytest.param("rA@3{a@1,b@2}", "1", {"a": "rA"}, {}, id="S1"),
        pytest.param(
            "rA@3{a@1,b@2}", "1 2", {"a": "rA"}, {"b": UnprotectedReason.OUTNUMBERED}, id="S2"
        ),
        pytest.param(S3, "1 2", {"a": "rB", "b": "rC"}, {}, id="S3"),
        pytest.param(S3, "1 3", {"a": "rB"}, {}, id="S4"),
        pytest.param(S3, "1 4", {"a": "rA"}, {}, id="S5"),
        pytest.param(S3, "1 3 4", {}, {"a": UnprotectedReason.ALL_SLOT_HOSTS_FAILED}, id="S6"),
        pytest.param(S7, "1 2", {"a": "rB", "b": "rC"}, {}, id="S7"),
        pytest.param(S7, "1 2 5", {"a": "rA", "b": "rC", "c": "rB"}, {}, id="S8"),
        pytest.param(
            S3,
            "1 2 3 4 5",
            {},
            {"a": UnprotectedReason.NO_SLOTS, "b": UnprotectedReason.NO_SLOTS},
            id="S9",
        ),
        pytest.param(
            "r@3{a@1} q@4{b@2}",
            "1 3",
            {},
            {"a": UnprotectedReason.ALL_SLOT_HOSTS_FAILED},
            id="S10",
        ),
    ],
)
def test_drill_of_the_specification(
    slots: str, failed: str, expected: dict[str, str], unprotected: dict[str, UnprotectedReason]
) -> None:
    result = simulate(world(slots), failed.split())

    if "b" in unprotected and unprotected["b"] is UnprotectedReason.OUTNUMBERED:
        assert len(result.assignments) == 1
        assert [row.reason for row in result.unprotected] == [UnprotectedReason.OUTNUMBERED]
        return
    if failed == "1 2 5":
        # All three are saved; which of the two ways around the circle is free.
        assert sorted(given_slots(result)) == ["a", "b", "c"]
        assert sorted(given_slots(result).values()) == ["rA", "rB", "rC"]
        assert not result.unprotected
        return
    assert given_slots(result) == expected
    assert {row.vm: row.reason for row in result.unprotected} == unprotected


def test_rack_of_the_specification_is_expanded_to_its_hosts() -> None:
    state = world("r@3{a@1} q@4{b@2}", racks={"1": "bb1", "3": "bb1", "2": "bb2", "4": "bb3"})

    failed = state.expand(FailureSet(racks=("bb1",)))
    result = simulate(state, failed)

    assert failed == {"1", "3"}
    assert [(row.vm, row.reason) for row in result.unprotected] == [
        ("a", UnprotectedReason.ALL_SLOT_HOSTS_FAILED)
    ]


def test_zone_that_has_slots_elsewhere_is_saved() -> None:
    state = world("r@9{a@1}", zones={"9": "az-b"})

    result = simulate(state, state.expand(FailureSet(zones=("az-a",))))

    assert given_slots(result) == {"a": "r"}


def test_whole_zone_without_slots_elsewhere_has_no_slots() -> None:
    state = world(S3, hosts=("99",), zones={"99": "az-b"})

    result = simulate(state, state.expand(FailureSet(zones=("az-a",))))

    assert {row.reason for row in result.unprotected} == {UnprotectedReason.NO_SLOTS}


def test_unknown_names_are_all_listed() -> None:
    state = world(S3)

    with pytest.raises(UnknownFailureDomainError) as caught:
        state.expand(FailureSet(hosts=("1", "77"), racks=("bb9",), zones=("az-z",)))

    assert caught.value.names == ("host 77", "rack bb9", "zone az-z")


def test_private_policy_leaves_contested_slots_alone() -> None:
    result = simulate(world(S7), ("1", "2", "5"), policy=DrillPolicy.PRIVATE)

    assert not result.assignments
    assert [row.slot for row in result.conflicts] == ["rA", "rB", "rC"]
    assert [row.vms for row in result.conflicts] == [("a", "b"), ("a", "c"), ("b", "c")]
    assert {row.reason for row in result.unprotected} == {UnprotectedReason.OUTNUMBERED}


def test_slot_that_is_too_small_does_not_count() -> None:
    result = simulate(world("r@3{a@1}", sizes={"a": 8}), ("1",))

    assert [row.reason for row in result.unprotected] == [UnprotectedReason.NOT_FIT]


def test_vm_that_outgrew_the_shared_slot_does_not_contest_it() -> None:
    state = world("r@3{a@1,b@2}", sizes={"a": 8})

    result = simulate(state, ("1", "2"))

    assert given_slots(result) == {"b": "r"}
    assert result.assignments[0].is_private


def test_slot_on_an_oversubscribed_host_is_no_room() -> None:
    state = world("r@3{a@1}")
    full = replace(state.hosts["3"], allocated=gib(999, 999), blocked=gib(4, 2))
    state = DrillState.of(
        [full, *(host for host in state.hosts.values() if host.name != "3")],
        state.vms.values(),
        state.slots.values(),
    )

    result = simulate(state, ("1",))

    assert [row.reason for row in result.unprotected] == [UnprotectedReason.NOT_FIT]


def test_slot_on_a_dead_host_has_failed_too() -> None:
    state = world("r@3{a@1}")
    state = DrillState.of(
        [replace(host, is_alive=host.name != "3") for host in state.hosts.values()],
        state.vms.values(),
        state.slots.values(),
    )

    result = simulate(state, ("1",))

    assert [row.reason for row in result.unprotected] == [UnprotectedReason.ALL_SLOT_HOSTS_FAILED]


def test_vm_that_nothing_is_owed_to_is_affected_but_not_unprotected() -> None:
    result = simulate(world("", vms={"a": "1"}, required=0), ("1",))

    assert (result.affected_vms, result.unprotected) == (1, ())


def test_larger_vm_gets_the_contested_slot() -> None:
    state = world("r@3{a@1,b@2}", sizes={"a": 2, "b": 4})

    result = simulate(state, ("1", "2"))

    assert given_slots(result) == {"b": "r"}


def test_private_slot_on_the_emptiest_host_is_preferred() -> None:
    state = world("r1@3{a@1} r2@4{a@1}")
    crowded = replace(state.hosts["3"], allocated=gib(100))
    state = DrillState.of(
        [crowded, *(host for host in state.hosts.values() if host.name != "3")],
        state.vms.values(),
        state.slots.values(),
    )

    assert given_slots(simulate(state, ("1",))) == {"a": "r2"}


def test_evacuations_that_began_keep_their_slots() -> None:
    state = world("r1@3{a@1,b@2} r2@4{b@2}")

    result = simulate(state, ("1", "2"), settled={"a"}, taken={"r1"})

    assert given_slots(result) == {"b": "r2"}
    assert result.affected_vms == 1


def test_hosts_after_count_what_moves_in() -> None:
    state = world("r1@3{a@1} r2@3{b@2}")

    after = simulate(state, ("1", "2")).hosts_after

    assert [(row.host, row.used, row.effective) for row in after] == [("3", gib(8, 2), BIG)]


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        pytest.param(
            [("a", "rA", "3"), ("b", "rA", "3")], "is used twice", id="one slot for two VMs"
        ),
        pytest.param([("b", "rB", "4")], "does not list the VM", id="somebody else's slot"),
        pytest.param([("a", "rX", "1")], "is on a dead host", id="failed target"),
        pytest.param([("a", "rS", "5")], "is too small", id="does not fit"),
    ],
)
def test_impossible_answers_are_refused(rows: list[tuple[str, str, str]], words: str) -> None:
    state = world("rA@3{a@1,b@2} rB@4{a@1} rX@1{a@1} rS@5{a@1}", slot_sizes={"rS": 2})
    result = DrillResult(
        failed_hosts=("1", "2"),
        affected_vms=2,
        assignments=tuple(
            Assignment(vm=vm, from_host="1", slot=slot, to_host=host, is_private=False)
            for vm, slot, host in rows
        ),
        unprotected=(),
        conflicts=(),
        hosts_after=(),
    )

    with pytest.raises(DrillVerificationError, match=words):
        verify_drill(state, result)


def test_answer_that_overfills_a_host_is_refused() -> None:
    state = world("rA@3{a@1}")
    result = simulate(state, ("1",))
    overfull = replace(result.hosts_after[0], used=BIG + gib(1))

    with pytest.raises(DrillVerificationError, match="more than it has"):
        verify_drill(state, replace(result, hosts_after=(overfull,)))


def most_saved(state: DrillState, failed: set[str]) -> tuple[int, list[int]]:
    """Try every way to give slots out: the most VMs, and their sizes, the largest first."""
    affected = [vm for vm in state.vms.values() if vm.host in failed]
    options = [
        [
            slot.name
            for slot in state.slots.values()
            if vm.uuid in slot.users
            and slot.host not in failed
            and slot.is_usable
            and vm.size.fits_into(slot.size)
        ]
        for vm in affected
    ]
    best: tuple[int, list[int]] = (0, [])

    def search(position: int, spent: frozenset[str], saved: list[int]) -> None:
        nonlocal best
        if position == len(affected):
            sizes = sorted(saved, reverse=True)
            best = max(best, (len(sizes), sizes))
            return
        search(position + 1, spent, saved)
        for name in options[position]:
            if name not in spent:
                size = affected[position].size.memory_bytes
                search(position + 1, spent | {name}, [*saved, size])

    search(0, frozenset(), [])
    return best


@given(state=states(are_valid=False), chosen=st.data())
def test_as_many_and_as_large_vms_are_saved_as_any_plan_could(
    state: DrillState, chosen: st.DataObject
) -> None:
    failed = chosen.draw(st.sets(st.sampled_from(sorted(state.hosts)), min_size=1))

    result = simulate(state, failed)

    sizes = sorted(
        (state.vms[row.vm].size.memory_bytes for row in result.assignments), reverse=True
    )
    assert (len(sizes), sizes) == most_saved(state, failed)


@given(state=states(are_valid=True))
def test_every_failure_up_to_the_cover_leaves_each_vm_a_private_slot(state: DrillState) -> None:
    assert rules_hold(state)
    usable = {
        uuid: sum(
            state.slots[name].is_usable and vm.size.fits_into(state.slots[name].size)
            for name in state.slots_of.get(uuid, ())
        )
        for uuid, vm in state.vms.items()
    }
    for count in range(1, 4):
        for failed in combinations(sorted(state.hosts), count):
            private = {row.vm for row in simulate(state, failed).assignments if row.is_private}
            covered = {
                uuid
                for uuid, vm in state.vms.items()
                if vm.host in failed and usable[uuid] >= count
            }
            assert covered <= private


@given(state=states(are_valid=False))
def test_rule_of_all_different_hosts_equals_the_five_rules(state: DrillState) -> None:
    assert all(state.keeps_rules(uuid) for uuid in state.vms) == rules_hold(state)


@given(state=st.one_of(states(are_valid=True), states(are_valid=False)))
def test_pairs_that_are_left_out_could_not_cost_anything(state: DrillState) -> None:
    owed = {uuid for uuid, vm in state.vms.items() if vm.required_count >= 2}
    lost = {
        row.vm
        for pair in combinations(sorted(state.hosts), 2)
        for row in simulate(state, pair).unprotected
        if row.vm in owed
    }

    report = drill_pairs(columns_of(state))

    assert set(report.unprotected_vms) == lost
    assert report.simulated <= report.cases


def test_pairs_of_a_covered_zone_are_proven_and_not_simulated() -> None:
    report = drill_pairs(columns_of(world(S3)))

    assert (report.simulated, report.unprotected_vms, report.worst) == (0, (), ())
    assert report.cases == 5


def test_pair_that_takes_host_and_only_slot_is_found() -> None:
    report = drill_pairs(columns_of(world("r@3{a@1,b@2}")))

    assert report.unprotected_vms == ("a", "b")
    assert [case.name for case in report.worst] == ["1+2", "1+3", "2+3"]


def test_vm_without_slots_is_lost_with_its_host_in_every_scope() -> None:
    state = world("", vms={"a": "1"}, hosts=("2",), racks={"1": "bb1", "2": "bb2"})

    assert drill_hosts(columns_of(state)).unprotected_vms == ("a",)
    assert drill_racks(columns_of(state)).unprotected_vms == ("a",)
    assert drill_pairs(columns_of(state)).unprotected_vms == ("a",)


def test_reports_put_the_worst_failure_first() -> None:
    state = world("", vms={"a": "1", "b": "2", "c": "2"}, racks={"1": "bb1", "2": "bb2"})

    hosts, racks = drill_hosts(columns_of(state)), drill_racks(columns_of(state))

    assert [case.name for case in hosts.worst] == ["2", "1"]
    assert [case.name for case in racks.worst] == ["bb2", "bb1"]
    assert (hosts.cases, racks.cases) == (2, 2)


def test_blast_radius_counts_vms_and_the_users_of_its_slots() -> None:
    zone = columns_of(world(S3, vms={"d": "3"}, racks={"3": "bb1"}))

    radii = blast_radii(zone, drill_hosts(zone))

    assert [one.host for one in radii] == ["1", "2", "3", "4", "5"]
    assert radii[2] == BlastRadius(
        host="3", rack="bb1", vms=1, unprotected_vms=1, slots=1, slot_users=2
    )


@pytest.mark.parametrize("order", list(permutations("abc")))
def test_result_does_not_depend_on_the_order_of_the_input(order: tuple[str, ...]) -> None:
    state = world(S7)
    shuffled = DrillState.of(
        reversed(list(state.hosts.values())),
        [state.vms[uuid] for uuid in order],
        reversed(list(state.slots.values())),
    )

    assert simulate(shuffled, ("1", "2", "5")) == simulate(state, ("1", "2", "5"))


def test_long_chains_of_contested_slots_are_untangled() -> None:
    count = 3000
    hosts = [DrillHost(name=f"h{n}", zone="z", effective=BIG) for n in range(count + 1)]
    target = DrillHost(
        name="target",
        zone="z",
        effective=ResourceVector(memory_bytes=1 << 60, vcpus=1 << 30),
    )
    vms = [
        DrillVM(uuid=f"v{n:05}", host=f"h{n}", size=gib(1), required_count=1) for n in range(count)
    ]
    # v0 can only use r0, v1 r0 and r1, and so on: serving them from the back needs one long chain.
    slots = [
        DrillSlot(
            name=f"r{n:05}",
            host="target",
            size=gib(1),
            users=tuple(f"v{m:05}" for m in (n, n + 1) if m < count),
        )
        for n in range(count)
    ]

    result = simulate(
        DrillState.of([*hosts, target], vms, slots), [f"h{n}" for n in range(count + 1)]
    )

    assert len(result.assignments) == count
    assert not result.unprotected


def test_drill_rejects_nothing_when_no_host_fails() -> None:
    result = simulate(world(S3), ())

    assert (result.affected_vms, result.assignments, result.unprotected) == (0, (), ())


@settings(max_examples=40, deadline=None)
@given(
    hosts=st.integers(4, 16),
    per_host=st.integers(1, 4),
    seed=st.integers(0, 1000),
    failing=st.sets(st.integers(0, 20)),
)
def test_a_drill_needs_no_vms_of_other_hosts(
    hosts: int, per_host: int, seed: int, failing: set[int]
) -> None:
    zone = model_zone(hosts, hosts * per_host, required=1, seed=seed)
    order = PlanOptions(reuse_order=ReuseOrder.MOST_USERS, max_users=4)
    covered = zone_after(zone, plan_cover(zone, CleaningPlan(), RoomyChooser(zone), order))
    names = {name for number, name in enumerate(covered.hosts.names) if number in failing}

    narrow = drill_state_of([covered], failing={*names, "host of another zone"})

    assert simulate(narrow, names) == simulate(drill_state_of([covered]), names)
    assert {vm.host for vm in narrow.vms.values()} <= names
