from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from capacity.groups.flavor_groups import FlavorGroupDef, FlavorSpec
from commitments.domain.planner import SlotPlan, SlotView, plan_slots
from commitments.domain.renewal import MOST_RENEWED_SLOTS, outdated_slots, plan_renewal
from commitments.domain.state import CommitmentState
from scheduling.resources import GIB
from tests.domain.commitments.test_planner import NOW, applied, desired, group, slot

LMS = group(("L", 32, 16), ("M", 16, 8), ("S", 8, 4))
VCPUS = {"L": 16, "M": 8, "S": 4}


def is_empty(plan: SlotPlan) -> bool:
    return not (plan.removed_ids or plan.creates or plan.shrinks or plan.updates)


def held(
    index: int, gib: int, flavor: str = "S", host: str | None = "h1", **more: object
) -> SlotView:
    vcpus = VCPUS.get(flavor, 1)
    view = slot(index, gib, host, resource_name=flavor, vcpus=vcpus, is_resting=True)
    return replace(view, **more)  # type: ignore[arg-type]


def with_vm(index: int, gib: int, flavor: str = "S") -> SlotView:
    return held(
        index,
        gib,
        flavor,
        is_resting=False,
        has_allocations=True,
        allocated_memory_bytes=gib * GIB,
    )


def renewed(
    existing: Sequence[SlotView],
    state: CommitmentState,
    flavors: FlavorGroupDef | None = LMS,
    *,
    max_slots: int = 0,
) -> SlotPlan:
    plan = plan_renewal(existing, state, flavors, now=NOW, max_slots=max_slots)
    assert isinstance(plan, SlotPlan)
    return plan


GROWN = group(("L", 32, 16), ("S", 16, 8))
MORE_VCPUS = group(("S", 8, 6))
SMALLER = group(("S", 4, 2))


@pytest.mark.parametrize(
    ("existing", "flavors", "replaced", "created"),
    [
        pytest.param([held(0, 32, "L"), held(1, 8)], LMS, [], [], id="all as their flavors"),
        pytest.param([held(0, 8), held(1, 3)], LMS, [], [], id="whole and remainder"),
        pytest.param([held(0, 3)], LMS, [], [], id="remainder alone"),
        pytest.param(
            [held(0, 8), held(1, 8)], GROWN, [0, 1], [("S", 16, 8)], id="flavor grew, both at rest"
        ),
        pytest.param(
            [held(0, 8, vcpus=8)], GROWN, [], [], id="flavor grew, one is the remainder now"
        ),
        pytest.param([held(0, 8)], GROWN, [0], [("S", 8, 8)], id="remainder of too few vCPUs"),
        pytest.param([held(0, 8)], MORE_VCPUS, [0], [("S", 8, 6)], id="vCPUs changed, not memory"),
        pytest.param(
            [held(0, 8)], SMALLER, [0], [("S", 4, 2), ("S", 4, 2)], id="flavor became smaller"
        ),
        pytest.param([held(0, 8, "gone")], LMS, [0], [("S", 8, 4)], id="flavor left the group"),
        pytest.param(
            [held(0, 8, "gone"), held(1, 8)],
            LMS,
            [0],
            [("S", 8, 4)],
            id="only the flavor that left",
        ),
        pytest.param(
            [held(0, 8), held(1, 8, host=None), held(2, 8)],
            GROWN,
            [0, 1, 2],
            [("S", 16, 8), ("S", 8, 8)],
            id="one has no host",
        ),
        pytest.param(
            [with_vm(0, 8), held(1, 8), held(2, 8)],
            GROWN,
            [1, 2],
            [("S", 16, 8)],
            id="the one with a VM stays",
        ),
        pytest.param([with_vm(0, 8, "gone")], LMS, [], [], id="only one with a VM"),
        pytest.param(
            [held(0, 8, "gone", is_resting=False)], LMS, [], [], id="on its way to another host"
        ),
        pytest.param(
            [held(0, 8), held(1, 8), held(2, 8, vcpus=8)],
            GROWN,
            [0, 1],
            [("S", 16, 8)],
            id="what is the remainder already is kept",
        ),
    ],
)
def test_empty_slots_of_old_sizes_are_replaced(
    existing: list[SlotView],
    flavors: FlavorGroupDef,
    replaced: list[int],
    created: list[tuple[str, int, int]],
) -> None:
    state = desired(sum(view.memory_bytes for view in existing) // GIB)
    plan = renewed(existing, state, flavors)

    assert [slot_id - 100 for slot_id in plan.renew_ids] == replaced
    sizes = [(new.resource_name, new.memory_bytes // GIB, new.vcpus) for new in plan.creates]
    assert sizes == created
    assert [new.slot_index for new in plan.creates] == [
        len(existing) + number for number in range(len(created))
    ]
    assert plan.total_slots == len(existing) - len(replaced) + len(created)
    assert (plan.repair_ids, plan.delete_ids, plan.shrinks) == ((), (), ())
    assert len(plan.repair_ids + plan.renew_ids + plan.cut_ids + plan.updates) == len(replaced)


@pytest.mark.parametrize(
    ("existing", "gib"),
    [
        pytest.param([held(0, 8, "gone")], 16, id="must grow"),
        pytest.param([held(0, 8, "gone"), held(1, 8)], 8, id="must shrink"),
        pytest.param([held(0, 8, "gone"), held(1, 8, zone="old")], 8, id="identity is wrong"),
    ],
)
def test_a_commitment_that_is_not_right_otherwise_gets_its_ordinary_plan(
    existing: list[SlotView], gib: int
) -> None:
    plan = renewed(existing, desired(gib))
    assert plan == plan_slots(existing, desired(gib), LMS, now=NOW)
    assert plan.renew_ids == ()


def test_an_ordinary_plan_never_renews() -> None:
    plan = plan_slots([held(0, 8, "gone")], desired(8), LMS, now=NOW)
    assert isinstance(plan, SlotPlan)
    assert is_empty(plan)


def test_nothing_is_renewed_into_more_slots_than_allowed() -> None:
    existing = [held(0, 32, "gone")]
    assert is_empty(renewed(existing, desired(32), SMALLER, max_slots=7))
    assert renewed(existing, desired(32), SMALLER, max_slots=8).created == 8


def test_nothing_is_renewed_into_slots_without_end() -> None:
    tiny = group_of({"tiny": (1, 1)})
    amount_gib = MOST_RENEWED_SLOTS + 1
    assert is_empty(renewed([held(0, amount_gib, "gone")], desired(amount_gib), tiny))
    fits = MOST_RENEWED_SLOTS
    assert renewed([held(0, fits, "gone")], desired(fits), tiny).created == MOST_RENEWED_SLOTS


def test_nothing_is_renewed_where_nothing_is_claimed_or_the_group_is_unknown() -> None:
    ended = desired(8, end_time=NOW - timedelta(days=1))
    assert renewed([held(0, 8, "gone")], ended).renew_ids == ()
    assert is_empty(renewed([], desired(0), None))
    assert not isinstance(plan_renewal([held(0, 8)], desired(8), None, now=NOW), SlotPlan)


def test_new_metadata_is_written_to_what_stays_only() -> None:
    existing = [held(0, 8, "gone", domain_id="old"), held(1, 8, domain_id="old")]
    plan = renewed(existing, desired(16))
    assert [update.slot_id for update in plan.updates] == [101]


FLAVORS = st.dictionaries(
    st.sampled_from(["a", "b", "c", "d"]),
    st.tuples(st.integers(1, 12), st.integers(1, 4)),
    min_size=1,
)
ROWS = st.lists(
    st.tuples(
        st.sampled_from(["a", "b", "c", "gone"]),
        st.integers(1, 12),
        st.integers(1, 4),
        st.sampled_from(["empty", "empty", "unplaced", "vm", "moving"]),
    ),
    max_size=8,
)


def group_of(sizes: dict[str, tuple[int, int]]) -> FlavorGroupDef:
    specs = [
        FlavorSpec(name=name, vcpus=vcpus, memory_bytes=gib * GIB)
        for name, (gib, vcpus) in sizes.items()
    ]
    specs.sort(key=lambda one: (-one.memory_bytes, -one.vcpus, one.name))
    return FlavorGroupDef(name="hana", flavors=tuple(specs))


def slots_of(rows: Sequence[tuple[str, int, int, str]]) -> list[SlotView]:
    return [
        held(
            position * 2,
            gib,
            flavor,
            None if kind == "unplaced" else "h1",
            vcpus=vcpus,
            is_resting=kind in {"empty", "unplaced"},
            has_allocations=kind == "vm",
            allocated_memory_bytes=GIB if kind == "vm" else 0,
        )
        for position, (flavor, gib, vcpus, kind) in enumerate(rows)
    ]


def sizes_of(views: Sequence[SlotView]) -> Counter[tuple[str, int, int]]:
    return Counter((view.resource_name, view.memory_bytes, view.vcpus) for view in views)


@settings(max_examples=300)
@given(ROWS, FLAVORS, st.randoms(use_true_random=False))
def test_a_renewal_holds_the_total_touches_no_vms_and_is_stable(
    rows: list[tuple[str, int, int, str]], sizes: dict[str, tuple[int, int]], random: object
) -> None:
    existing, flavors = slots_of(rows), group_of(sizes)
    state = desired(sum(gib for _, gib, _, _ in rows))
    plan = renewed(existing, state, flavors)
    after = [
        replace(view, is_resting=view.is_resting or view.slot_id >= 1000)
        for view in applied(existing, state, plan)
    ]

    shuffled = list(existing)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert renewed(shuffled, state, flavors) == plan
    assert sum(view.memory_bytes for view in after) == state.requested_amount
    busy = {view.slot_id for view in existing if not view.is_resting}
    assert not busy & set(plan.removed_ids)
    assert plan.shrinks == ()
    assert outdated_slots(after, flavors) == ()
    assert is_empty(renewed(after, state, flavors))
    indexes = [view.slot_index for view in after]
    assert len(indexes) == len(set(indexes))
    # Slots as large as their flavor stay; all others at rest are what a new commitment would get.
    whole = {(name, gib * GIB, vcpus) for name, (gib, vcpus) in sizes.items()}
    resting = [view for view in existing if view.is_resting]
    odd_bytes = sum(v.memory_bytes for v in resting if not set(sizes_of([v])) <= whole)
    fresh = plan_slots([], desired(odd_bytes // GIB), flavors, now=NOW)
    assert isinstance(fresh, SlotPlan)
    kept_whole = sizes_of([v for v in resting if set(sizes_of([v])) <= whole])
    built = Counter((new.resource_name, new.memory_bytes, new.vcpus) for new in fresh.creates)
    assert sizes_of([view for view in after if view.is_resting]) == kept_whole + built
