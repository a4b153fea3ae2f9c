"""Exchanging the slots of VMs one after the other (spec failover, 17.4)."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.failover_zones import RoomyChooser, model_zone
from failover.domain.covering import plan_cover
from failover.domain.drill_columns import drill_state_of
from failover.domain.drill_state import DrillSlot, DrillState
from failover.domain.exchange import ExchangePlan, plan_exchange
from failover.domain.plan import CleaningPlan, PlanOptions, ReuseOrder
from failover.domain.rebalance import TargetSlot
from failover.domain.shadow import bare_zone, zone_after
from scheduling.resources import GIB, ZERO
from tests.domain.failover.drill_worlds import gib, rules_hold, world


def target(number: int, host: str, *users: str, memory_gib: int = 4) -> TargetSlot:
    return TargetSlot(number=number, host=host, size=gib(memory_gib), users=users)


def planned(state: DrillState, *targets: TargetSlot, most: int = 10_000) -> ExchangePlan:
    return plan_exchange(state, targets, most=most, may_use=lambda _vm, _host: True)


def replayed(state: DrillState, targets: list[TargetSlot], plan: ExchangePlan) -> list[DrillState]:
    """Carry the exchanges out one by one; return the state after each, rooms included."""
    slots = dict(state.slots)
    numbered = {one.number: one for one in targets}
    made = len(slots)
    while any(f"made-{made}-{one.number}" in slots for one in targets):
        made += 1  # slots that are made have names of their own
    names = {
        one.number: plan.standing.get(one.number, f"made-{made}-{one.number}") for one in targets
    }
    seen = []
    for one in plan.exchanges:
        for number in one.targets:
            wanted, name = numbered[number], names[number]
            slots.setdefault(
                name, DrillSlot(name=name, host=wanted.host, size=wanted.size, users=())
            )
        joined = {names[number] for number in one.targets}
        for name, slot in list(slots.items()):
            users = [user for user in slot.users if user != one.vm]
            users += [one.vm] * (name in joined)
            slots[name] = replace(slot, users=tuple(users))
        slots = {name: slot for name, slot in slots.items() if slot.users}
        hosts = [
            replace(
                host,
                blocked=sum((slot.size for slot in slots.values() if slot.host == host.name), ZERO),
            )
            for host in state.hosts.values()
        ]
        seen.append(DrillState.of(hosts, state.vms.values(), slots.values()))
    return seen


def test_pair_that_shares_both_ways_is_regrouped_although_single_steps_are_not_allowed() -> None:
    # b shares rA with a; a second shared slot, even for a moment, would break rule 5.
    state = world("rA@3{a@1,b@2} rB@4{a@1}", required=1)
    targets = [target(0, "4", "a", "b")]

    plan = planned(state, *targets)

    assert [one.vm for one in plan.exchanges] == ["a", "b"]
    (_, after) = replayed(state, targets, plan)
    assert rules_hold(after)
    assert plan.reserved_after == 4 * GIB


def test_slot_of_the_plan_that_stands_with_its_users_is_kept() -> None:
    state = world("r1@3{a@1} r2@4{b@2}", required=1)

    plan = planned(state, target(0, "3", "a", "b"))

    assert plan.standing == {0: "r1"}
    assert [one.vm for one in plan.exchanges] == ["b"]


def test_slot_whose_user_is_elsewhere_too_is_made_anew() -> None:
    state = world("r1@3{a@1} r2@4{a@1} r3@5{b@2}", hosts=("6",), required=1)

    plan = planned(state, target(0, "3", "a", "b"))

    assert plan.standing == {}
    assert {one.vm for one in plan.exchanges} == {"a", "b"}


def test_without_room_for_the_new_beside_the_old_a_vm_waits() -> None:
    state = world("r1@3{a@1}", hosts=("9",), required=1)
    full = DrillState.of(
        [
            replace(host, allocated=host.effective - gib(3) if host.name == "9" else host.allocated)
            for host in state.hosts.values()
        ],
        state.vms.values(),
        state.slots.values(),
    )

    plan = planned(full, target(0, "9", "a"))

    assert (plan.exchanges, plan.blocked, plan.is_cut) == ((), 1, False)


def test_coverage_is_never_lowered() -> None:
    state = world("r1@3{a@1} r2@4{a@1}", hosts=("9",), required=2)

    assert planned(state, target(0, "9", "a")).blocked == 1


def test_what_is_more_than_allowed_is_left_for_the_next_time() -> None:
    state = world("r1@3{a@1} r2@4{b@2}", hosts=("9",), required=1)

    plan = planned(state, target(0, "9", "a", "b"), most=1)

    assert (len(plan.exchanges), plan.blocked, plan.is_cut) == (1, 0, True)


def test_host_that_a_vm_may_not_use_is_left_out() -> None:
    state = world("r1@3{a@1}", hosts=("9",), required=1)

    plan = plan_exchange(
        state, [target(0, "9", "a")], most=9, may_use=lambda _vm, host: host != "9"
    )

    assert plan.exchanges == ()


@settings(max_examples=25, deadline=None)
@given(
    hosts=st.integers(8, 20),
    per_host=st.integers(1, 4),
    required=st.integers(1, 2),
    seed=st.integers(0, 1000),
    most=st.integers(1, 60),
)
def test_rules_hold_and_nobody_loses_after_any_number_of_exchanges(
    hosts: int, per_host: int, required: int, seed: int, most: int
) -> None:
    zone = model_zone(hosts, hosts * per_host, required=required, seed=seed)
    order = PlanOptions(reuse_order=ReuseOrder.MOST_USERS, max_users=4)
    before = zone_after(zone, plan_cover(zone, CleaningPlan(), RoomyChooser(zone), order))
    bare = bare_zone(before)
    shadow = zone_after(bare, plan_cover(bare, CleaningPlan(), RoomyChooser(bare), PlanOptions()))
    targets = [
        TargetSlot(number=number, host=slot.host, size=slot.size, users=slot.users)
        for number, slot in enumerate(drill_state_of([shadow]).slots.values())
    ]
    state = drill_state_of([before])
    cover = {uuid: len(state.slots_of.get(uuid, ())) for uuid in state.vms}
    for _ in range(200):
        plan = planned(state, *targets, most=most)
        if not plan.exchanges:
            break
        for between in replayed(state, targets, plan):
            assert rules_hold(between)
            wanted = {uuid: min(cover[uuid], vm.required_count) for uuid, vm in state.vms.items()}
            assert all(len(between.slots_of.get(u, ())) >= wanted[u] for u in between.vms)
            state = between
    if not plan.blocked:
        ends = {(slot.host, frozenset(slot.users)) for slot in state.slots.values()}
        assert ends == {(one.host, frozenset(one.users)) for one in targets if one.users}
