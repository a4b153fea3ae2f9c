from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from benchmarks.failover_zones import RoomyChooser, model_zone
from failover.domain.covering import plan_cover
from failover.domain.drill_columns import coverage_costs, drill_state_of
from failover.domain.drill_state import DrillSlot, DrillState
from failover.domain.plan import CleaningPlan, PlanOptions, ReuseOrder
from failover.domain.rebalance import RebalancePlan, TargetSlot, plan_rebalance
from failover.domain.shadow import bare_zone, zone_after
from scheduling.resources import GIB
from tests.domain.failover.drill_worlds import gib, rules_hold, states, world


def target(number: int, host: str, *users: str, memory_gib: int = 4) -> TargetSlot:
    return TargetSlot(number=number, host=host, size=gib(memory_gib), users=users)


def planned(state: DrillState, *targets: TargetSlot, most: int = 100) -> RebalancePlan:
    return plan_rebalance(state, targets, most_steps=most, may_use=lambda _vm, _host: True)


def replayed(state: DrillState, targets: list[TargetSlot], plan: RebalancePlan) -> list[DrillState]:
    """Carry the steps out one half at a time; return the state after every half."""
    slots = dict(state.slots)
    numbered = {one.number: one for one in targets}
    seen = []

    def note() -> None:
        kept = [slot for slot in slots.values() if slot.users]
        seen.append(DrillState.of(state.hosts.values(), state.vms.values(), kept))

    for step in plan.steps:
        name = step.joins or f"new-{step.target}"
        wanted = numbered[step.target]
        slot = slots.get(name) or DrillSlot(name=name, host=wanted.host, size=wanted.size, users=())
        slots[name] = replace(slot, users=(*slot.users, step.vm))
        note()
        if step.leaves:
            left = slots[step.leaves]
            slots[step.leaves] = replace(
                left, users=tuple(user for user in left.users if user != step.vm)
            )
        note()
    return seen


def test_two_vms_with_slots_of_their_own_come_to_share_one() -> None:
    state = world("r1@3{a@1} r2@4{b@2}", required=1)

    plan = planned(state, target(0, "3", "a", "b"))

    assert [(step.vm, step.joins, step.leaves) for step in plan.steps] == [("b", "r1", "r2")]
    assert (plan.reserved_before, plan.reserved_after) == (8 * GIB, 4 * GIB)
    assert plan.blocked == 0


def test_new_slot_is_made_before_the_old_one_goes() -> None:
    state = world("r1@3{a@1}", hosts=("9",), required=1)

    plan = planned(state, target(7, "9", "a"))

    assert [(step.target, step.joins, step.leaves) for step in plan.steps] == [(7, "", "r1")]


def test_room_for_a_moment_with_both_is_needed() -> None:
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

    assert (plan.steps, plan.blocked) == ((), 1)


def test_state_in_between_keeps_the_rules_or_nothing_happens() -> None:
    # b shares rA with a; a second shared slot, even for a moment, breaks rule 5.
    state = world("rA@3{a@1,b@2} rB@4{a@1}", required=1)

    plan = planned(state, target(0, "3", "a"), target(1, "4", "a", "b"))

    assert [step.vm for step in plan.steps] == []
    assert plan.blocked == 1


def test_vm_that_may_not_run_on_a_host_stays_where_it_is() -> None:
    state = world("r1@3{a@1}", hosts=("9",), required=1)

    plan = plan_rebalance(
        state, [target(0, "9", "a")], most_steps=9, may_use=lambda _vm, host: host != "9"
    )

    assert plan.steps == ()


def test_number_of_steps_is_limited() -> None:
    state = world("r1@3{a@1} r2@4{b@2} r3@5{c@6}", hosts=("9",), required=1)

    plan = planned(state, target(0, "9", "a", "b", "c"), most=2)

    assert len(plan.steps) == 2
    assert plan.blocked == 1


@given(
    state=states(are_valid=True),
    choice=st.data(),
)
def test_no_half_step_breaks_a_rule_or_lowers_coverage(
    state: DrillState, choice: st.DataObject
) -> None:
    hosts, vms = sorted(state.hosts), sorted(state.vms)
    targets = [
        TargetSlot(
            number=number,
            host=choice.draw(st.sampled_from(hosts)),
            size=gib(choice.draw(st.sampled_from((4, 8)))),
            users=tuple(
                choice.draw(st.lists(st.sampled_from(vms), unique=True, min_size=1, max_size=4))
            ),
        )
        for number in range(choice.draw(st.integers(0, 4)))
    ]

    plan = planned(state, *targets)

    cover = {uuid: len(state.slots_of.get(uuid, ())) for uuid in vms}
    for between in replayed(state, targets, plan):
        assert rules_hold(between)
        for uuid in vms:
            assert len(between.slots_of.get(uuid, ())) >= cover[uuid]


def test_plan_from_scratch_reserves_less_than_the_reference_order() -> None:
    zone = model_zone(60, 600)
    order = PlanOptions(reuse_order=ReuseOrder.MOST_USERS, max_users=10)
    before = zone_after(zone, plan_cover(zone, CleaningPlan(), RoomyChooser(zone), order))
    bare = bare_zone(before)
    shadow = zone_after(bare, plan_cover(bare, CleaningPlan(), RoomyChooser(bare), PlanOptions()))
    state = drill_state_of([before])
    targets = [
        TargetSlot(number=number, host=slot.host, size=slot.size, users=slot.users)
        for number, slot in enumerate(drill_state_of([shadow]).slots.values())
    ]

    plan = planned(state, *targets, most=100_000)

    after = replayed(state, targets, plan)[-1]
    assert plan.reserved_after == sum(slot.size.memory_bytes for slot in after.slots.values())
    assert all(after.keeps_rules(uuid) for uuid in after.vms)
    shadow_cost = coverage_costs(shadow)[0].reserved_memory_bytes
    assert shadow_cost is not None
    assert shadow_cost < plan.reserved_before


def test_nothing_is_done_when_the_plan_is_what_is_there() -> None:
    state = world("r1@3{a@1,b@2}", required=1)

    assert planned(state, target(0, "3", "a", "b")).steps == ()


def test_plan_of_the_empty_zone_has_no_steps() -> None:
    empty = DrillState.of((), (), ())

    assert planned(empty).reserved_after == 0
