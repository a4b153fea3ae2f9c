from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from capacity.groups.flavor_groups import FlavorGroupDef, FlavorSpec
from commitments.domain.planner import (
    FlavorGroupEmpty,
    FlavorGroupNotFound,
    SlotLimitExceeded,
    SlotPlan,
    SlotView,
    count_new_slots,
    plan_slots,
    select_flavor,
)
from commitments.domain.state import CommitmentState
from commitments.domain.statuses import CommitmentStatus, ResourceType
from commitments.domain.subsets import PieceClass, ReachableSums
from scheduling.resources import GIB

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
LATER = NOW + timedelta(days=365)


def is_empty(plan: SlotPlan) -> bool:
    return not (plan.removed_ids or plan.creates or plan.shrinks or plan.updates)


def group(*flavors: tuple[str, int, int]) -> FlavorGroupDef:
    return FlavorGroupDef(
        name="hana",
        flavors=tuple(
            FlavorSpec(name=name, vcpus=vcpus, memory_bytes=gib * GIB)
            for name, gib, vcpus in flavors
        ),
    )


LMS = group(("L", 32, 16), ("M", 16, 8), ("S", 8, 4))
VARIABLE = group(("c4_m32", 32, 4), ("c8_m16", 16, 8), ("c4_m8", 8, 4))


def desired(gib: int, **changes: object) -> CommitmentState:
    state = CommitmentState(
        commitment_uuid="abc123",
        project_id="project-1",
        domain_id="domain-1",
        flavor_group_name="hana",
        zone="az-1",
        resource_type=ResourceType.MEMORY,
        requested_amount=gib * GIB,
        status=CommitmentStatus.CONFIRMED,
        start_time=NOW,
        end_time=LATER,
        parent_generation=1,
    )
    return replace(state, **changes)  # type: ignore[arg-type]


def slot(
    index: int, gib: int, host: str | None = None, used_gib: int = 0, **changes: object
) -> SlotView:
    view = SlotView(
        slot_id=100 + index,
        slot_index=index,
        project_id="project-1",
        domain_id="domain-1",
        flavor_group_name="hana",
        zone="az-1",
        memory_bytes=gib * GIB,
        vcpus=max(1, gib // 2),
        resource_name="S",
        target_host=host,
        has_allocations=used_gib > 0,
        allocated_memory_bytes=used_gib * GIB,
        start_time=NOW,
        end_time=LATER,
        parent_generation=1,
        commitment_uuid="abc123",
    )
    return replace(view, **changes)  # type: ignore[arg-type]


def planned(
    existing: Sequence[SlotView],
    state: CommitmentState,
    *,
    max_slots: int = 0,
    flavors: FlavorGroupDef | None = LMS,
) -> SlotPlan:
    plan = plan_slots(existing, state, flavors, now=NOW, max_slots=max_slots)
    assert isinstance(plan, SlotPlan)
    return plan


def applied(existing: Sequence[SlotView], state: CommitmentState, plan: SlotPlan) -> list[SlotView]:
    shrinks = {shrink.slot_id: shrink for shrink in plan.shrinks}
    updates = {update.slot_id: update for update in plan.updates}
    after = []
    for view in existing:
        if view.slot_id in plan.removed_ids:
            continue
        shrink, update = shrinks.get(view.slot_id), updates.get(view.slot_id)
        changed = view
        if shrink:
            changed = replace(changed, memory_bytes=shrink.memory_bytes, vcpus=shrink.vcpus)
        if update:
            changed = replace(
                changed,
                commitment_uuid=update.commitment_uuid,
                domain_id=update.domain_id,
                start_time=update.start_time,
                end_time=update.end_time,
                parent_generation=update.parent_generation,
            )
        after.append(changed)
    after.extend(
        SlotView(
            slot_id=1000 + new.slot_index,
            slot_index=new.slot_index,
            project_id=state.project_id,
            domain_id=state.domain_id,
            flavor_group_name=state.flavor_group_name,
            zone=state.zone,
            memory_bytes=new.memory_bytes,
            vcpus=new.vcpus,
            resource_name=new.resource_name,
            start_time=state.start_time,
            end_time=state.end_time,
            parent_generation=state.parent_generation,
            commitment_uuid=state.commitment_uuid,
        )
        for new in plan.creates
    )
    return after


@pytest.mark.parametrize(
    ("flavors", "delta_gib", "name", "slot_gib", "vcpus"),
    [
        pytest.param(LMS, 8, "S", 8, 4, id="8"),
        pytest.param(LMS, 12, "S", 8, 4, id="12"),
        pytest.param(LMS, 16, "M", 16, 8, id="16"),
        pytest.param(LMS, 32, "L", 32, 16, id="32"),
        pytest.param(LMS, 100, "L", 32, 16, id="100"),
        pytest.param(LMS, 3, "S", 3, 4, id="3"),
        pytest.param(VARIABLE, 24, "c8_m16", 16, 8, id="variable 24"),
        pytest.param(VARIABLE, 64, "c4_m32", 32, 4, id="variable 64"),
    ],
)
def test_the_largest_flavor_that_fits_is_selected(
    flavors: FlavorGroupDef, delta_gib: int, name: str, slot_gib: int, vcpus: int
) -> None:
    flavor, memory_bytes = select_flavor(flavors, delta_gib * GIB)

    assert (flavor.name, memory_bytes, flavor.vcpus) == (name, slot_gib * GIB, vcpus)


@pytest.mark.parametrize(
    ("existing", "state", "removed", "created"),
    [
        pytest.param([], desired(24), [], [(0, "M", 16), (1, "S", 8)], id="none, 24"),
        pytest.param([], desired(56), [], [(0, "L", 32), (1, "M", 16), (2, "S", 8)], id="none, 56"),
        pytest.param([slot(0, 16), slot(1, 16)], desired(8), [0, 1], [(2, "S", 8)], id="16 16, 8"),
        pytest.param([slot(0, 8)], desired(0), [0], [], id="8, 0"),
        pytest.param([slot(0, 8, "host-1", 8)], desired(0), [0], [], id="8 with VM, 0"),
        pytest.param(
            [slot(0, 8, flavor_group_name="wrong-group")],
            desired(8),
            [0],
            [(1, "S", 8)],
            id="wrong group",
        ),
        pytest.param(
            [slot(0, 8, project_id="other")], desired(8), [0], [(1, "S", 8)], id="wrong project"
        ),
        pytest.param(
            [slot(0, 8, "host-1", 8), slot(1, 8)], desired(8), [1], [], id="VM and unplaced"
        ),
        pytest.param(
            [slot(0, 8, "host-1", 8), slot(1, 8, "host-2")], desired(8), [1], [], id="VM and empty"
        ),
        pytest.param(
            [slot(0, 8, "h1", 8), slot(1, 8, "h2"), slot(2, 8), slot(3, 8)],
            desired(16),
            [2, 3],
            [],
            id="VM, empty, two unplaced",
        ),
        pytest.param(
            [slot(0, 8, "host-1", zone="az-old")],
            desired(8),
            [0],
            [(1, "S", 8)],
            id="placed, zone changed",
        ),
        pytest.param(
            [slot(0, 8, zone="az-old")], desired(8), [0], [(1, "S", 8)], id="unplaced, zone changed"
        ),
        pytest.param([slot(0, 8, "host-1")], desired(8), [], [], id="nothing to do"),
        pytest.param(
            [slot(0, 8), slot(1, 8)],
            desired(56),
            [],
            [(2, "L", 32), (3, "S", 8)],
            id="8 8, 56",
        ),
        pytest.param([slot(4, 8)], desired(16), [], [(5, "S", 8)], id="gaps are not filled"),
        pytest.param(
            [slot(0, 32), slot(1, 8, "host-1"), slot(2, 8)],
            desired(40),
            [2],
            [],
            id="exact unplaced slot before the first one",
        ),
        pytest.param(
            [slot(0, 32), slot(1, 8, "host-1")],
            desired(32),
            [1],
            [],
            id="exact placed slot before an unplaced one that is too large",
        ),
        pytest.param(
            [slot(0, 32), slot(1, 16), slot(2, 16, "host-1")],
            desired(60),
            [1],
            [(3, "S", 8), (4, "S", 4)],
            id="least overshoot, unplaced only",
        ),
        pytest.param([slot(0, 8, "h", 8)], desired(8, resource_type=ResourceType.CORES), [0], []),
        pytest.param([slot(0, 8)], desired(8, status=CommitmentStatus.PLANNED), [0], []),
        pytest.param([slot(0, 8)], desired(8, end_time=NOW), [0], []),
    ],
)
def test_slots_are_planned_as_the_examples_say(
    existing: list[SlotView],
    state: CommitmentState,
    removed: list[int],
    created: list[tuple[int, str, int]],
) -> None:
    plan = planned(existing, state)

    assert sorted(slot_id - 100 for slot_id in plan.removed_ids) == removed
    assert [
        (new.slot_index, new.resource_name, new.memory_bytes // GIB) for new in plan.creates
    ] == created
    assert [new.name for new in plan.creates] == [f"commitment-abc123-{i}" for i, _, _ in created]
    assert plan.shrinks == ()
    assert plan.updates == ()
    assert plan.total_slots == len(existing) - len(removed) + len(created)
    assert plan.created == len(created)
    assert is_empty(plan) == (not removed and not created)


def test_a_slot_in_the_wrong_group_counts_as_repaired_and_not_as_deleted() -> None:
    plan = planned([slot(0, 8, flavor_group_name="wrong-group"), slot(1, 16)], desired(8))

    assert (len(plan.repair_ids), len(plan.delete_ids)) == (1, 1)


def test_a_changed_domain_is_patched_in_place() -> None:
    plan = planned([slot(0, 8, "host-1", domain_id="domain-old")], desired(8))

    (update,) = plan.updates
    assert update.domain_id == "domain-1"
    assert (plan.removed_ids, plan.creates, len(plan.updates)) == ((), (), 1)


@pytest.mark.parametrize(
    ("changes", "field", "expected"),
    [
        pytest.param({"start_time": LATER}, "start_time", LATER, id="start"),
        pytest.param({"end_time": None}, "end_time", None, id="end cleared"),
        pytest.param({"parent_generation": 2}, "parent_generation", 2, id="generation"),
        pytest.param({"commitment_uuid": "new-uuid"}, "commitment_uuid", "new-uuid", id="uuid"),
    ],
)
def test_changed_metadata_is_written_to_slots_that_stay(
    changes: dict[str, object], field: str, expected: object
) -> None:
    (update,) = planned([slot(0, 8)], desired(8, **changes)).updates

    assert getattr(update, field) == expected


@pytest.mark.parametrize(
    "changes", [{"start_time": None}, {"parent_generation": 0}, {"domain_id": ""}]
)
def test_metadata_that_the_commitment_does_not_set_stays(changes: dict[str, object]) -> None:
    assert is_empty(planned([slot(0, 8)], desired(8, **changes)))


@pytest.mark.parametrize(
    ("existing", "limit", "new_slots"),
    [
        pytest.param([], 2, 3, id="3 over 2"),
        pytest.param([], 3, None, id="3 of 3"),
        pytest.param([slot(0, 8), slot(1, 8)], 2, None, id="existing slots do not count"),
        pytest.param([], 0, None, id="no limit"),
    ],
)
def test_the_slot_limit_counts_new_slots_only(
    existing: list[SlotView], limit: int, new_slots: int | None
) -> None:
    outcome = plan_slots(existing, desired(56), LMS, now=NOW, max_slots=limit)

    if new_slots is None:
        assert isinstance(outcome, SlotPlan)
    else:
        assert isinstance(outcome, SlotLimitExceeded)
        assert outcome == SlotLimitExceeded(new_slots=new_slots, limit=limit)
        assert "exceeds limit of 2" in outcome.message


def test_an_absurd_amount_is_counted_without_making_its_slots() -> None:
    outcome = plan_slots([], desired((1 << 33) - 1), LMS, now=NOW, max_slots=1000)

    assert isinstance(outcome, SlotLimitExceeded)
    assert outcome.new_slots == (1 << 28) - 1 + 3


def test_an_unknown_or_empty_group_is_an_answer() -> None:
    unknown = plan_slots([], desired(8), None, now=NOW)
    empty = plan_slots([], desired(8), FlavorGroupDef(name="hana", flavors=()), now=NOW)

    assert isinstance(unknown, FlavorGroupNotFound)
    assert isinstance(empty, FlavorGroupEmpty)
    assert (unknown.group_name, empty.group_name) == ("hana", "hana")
    assert "hana" in unknown.message
    assert "hana" in empty.message


def test_slots_of_an_unknown_group_can_still_be_released() -> None:
    plan = planned([slot(0, 8)], desired(0), flavors=None)

    assert plan.removed_ids == (100,)


def test_slots_with_vms_give_up_what_their_vms_leave_free_last_slot_first() -> None:
    plan = planned([slot(0, 16, "h1", 8), slot(1, 16, "h2", 8), slot(2, 8, "h3")], desired(20))

    assert plan.delete_ids == (102,)
    assert [(s.slot_id, s.memory_bytes // GIB, s.vcpus) for s in plan.shrinks] == [
        (100, 12, 6),
        (101, 8, 4),
    ]
    assert plan.total_slots == 2


def test_slots_with_vms_are_cut_only_when_nothing_else_is_left() -> None:
    plan = planned([slot(0, 8, "h1", 8), slot(1, 8, "h2", 8), slot(2, 8, "h3", 8)], desired(12))

    assert plan.delete_ids == (102,)
    assert [(s.slot_id, s.memory_bytes // GIB, s.vcpus) for s in plan.shrinks] == [(101, 4, 2)]


def test_a_shrunk_slot_keeps_its_share_of_vcpus_rounded_up() -> None:
    plan = planned([slot(0, 16, "h1", 1, vcpus=3)], desired(8))

    assert [(s.memory_bytes // GIB, s.vcpus) for s in plan.shrinks] == [(8, 2)]


def test_a_slot_without_vcpus_is_made_anew_once_it_needs_a_host() -> None:
    existing = [slot(0, 8, vcpus=0), slot(1, 8, "h1", vcpus=0), slot(2, 8, None, 4, vcpus=0)]
    plan = planned(existing, desired(24))
    assert plan.repair_ids == (100,)
    assert [(new.slot_index, new.memory_bytes // GIB, new.vcpus) for new in plan.creates] == [
        (3, 8, 4)
    ]
    after = applied(existing, desired(24), plan)
    assert is_empty(planned(after, desired(24)))
    bare = group(("bare", 8, 0))
    assert is_empty(planned(existing, desired(24), flavors=bare))


def test_many_slots_of_odd_sizes_fall_back_to_the_first_that_cover() -> None:
    existing = [slot(i, 1, memory_bytes=GIB + (1 << i)) for i in range(24)]
    total = sum(s.memory_bytes for s in existing)
    state = desired(0, requested_amount=total - 20 * GIB - 12345)

    plan = planned(existing, state)

    assert plan.delete_ids == tuple(range(100, 120))
    assert total - sum(s.memory_bytes for s in existing[:20]) + sum(
        new.memory_bytes for new in plan.creates
    ) == (state.requested_amount)


SLOTS = st.lists(
    st.builds(
        lambda gib, host, used, domain, wrong: (gib, host, used, domain, wrong),
        st.sampled_from([1, 3, 4, 8, 16, 24, 32]),
        st.sampled_from([None, "h1", "h2"]),
        st.integers(0, 32),
        st.sampled_from(["domain-1", "domain-old"]),
        st.sampled_from([None, None, None, None, "project_id", "zone", "flavor_group_name"]),
    ),
    max_size=8,
)


def slots_from(rows: Sequence[tuple[int, str | None, int, str, str | None]]) -> list[SlotView]:
    views = []
    for position, (gib, host, used, domain, wrong) in enumerate(rows):
        used_gib = min(used, gib) if host else 0
        view = slot(position * 2, gib, host, used_gib, domain_id=domain)
        views.append(replace(view, **{wrong: "wrong"}) if wrong else view)  # type: ignore[arg-type]
    return views


@settings(max_examples=300)
@given(SLOTS, st.integers(0, 120), st.randoms(use_true_random=False))
def test_a_plan_reaches_the_amount_and_is_stable(
    rows: list[tuple[int, str | None, int, str, str | None]], gib: int, random: object
) -> None:
    existing = slots_from(rows)
    state = desired(gib)
    plan = planned(existing, state)
    after = applied(existing, state, plan)

    shuffled = list(existing)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert planned(shuffled, state) == plan
    assert sum(view.memory_bytes for view in after) == gib * GIB
    assert is_empty(planned(after, state))
    assert plan.total_slots == len(after)
    indexes = [view.slot_index for view in after]
    assert len(indexes) == len(set(indexes))
    highest = max((view.slot_index for view in existing), default=-1)
    assert all(new.slot_index > highest for new in plan.creates)
    assert plan.created == 0 or not plan.shrinks
    assert all(view.project_id == "project-1" and view.zone == "az-1" for view in after)


@settings(max_examples=300)
@given(SLOTS, st.integers(1, 120))
def test_slots_with_vms_are_touched_only_when_no_empty_slot_is_left(
    rows: list[tuple[int, str | None, int, str, str | None]], gib: int
) -> None:
    existing = [view for view in slots_from(rows) if view.project_id == "project-1"]
    existing = [v for v in existing if v.zone == "az-1" and v.flavor_group_name == "hana"]
    plan = planned(existing, desired(gib))
    touched = set(plan.delete_ids) | {shrink.slot_id for shrink in plan.shrinks}
    has_vms = {view.slot_id for view in existing if view.has_allocations}
    survivors = [view for view in existing if view.slot_id not in touched]

    if touched & has_vms:
        assert all(view.has_allocations for view in survivors)
        assert plan.creates == ()
    assert {shrink.slot_id for shrink in plan.shrinks} <= has_vms


@settings(max_examples=300)
@given(
    st.lists(st.tuples(st.integers(1, 6), st.sampled_from([None, "h"])), min_size=1, max_size=7),
    st.data(),
)
def test_an_exact_set_of_empty_slots_is_found_when_there_is_one(
    rows: list[tuple[int, str | None]], data: st.DataObject
) -> None:
    existing = [slot(index, gib, host) for index, (gib, host) in enumerate(rows)]
    total_gib = sum(gib for gib, _ in rows)
    gib = data.draw(st.integers(1, total_gib))
    plan = planned(existing, desired(gib))

    def sums(views: Sequence[SlotView]) -> set[int]:
        return {
            sum(view.memory_bytes for view in chosen) // GIB
            for count in range(len(views) + 1)
            for chosen in combinations(views, count)
        }

    surplus = total_gib - gib
    unplaced = [view for view in existing if view.target_host is None]
    placed_ids = {view.slot_id for view in existing if view.target_host is not None}
    freed = sum(v.memory_bytes for v in existing if v.slot_id in plan.delete_ids) // GIB
    if surplus in sums(existing):
        assert freed == surplus
        assert plan.creates == ()
    if surplus in sums(unplaced):
        assert not placed_ids & set(plan.delete_ids)
    elif surplus not in sums(existing):
        pool = unplaced if max(sums(unplaced)) >= surplus else existing
        assert freed == min(found for found in sums(pool) if found >= surplus)


@given(st.integers(0, 500), st.sampled_from([LMS, VARIABLE, group(("none", 0, 1))]))
def test_counting_new_slots_agrees_with_making_them(gib: int, flavors: FlavorGroupDef) -> None:
    plan = planned([], desired(gib), flavors=flavors)

    assert count_new_slots(flavors, gib * GIB) == plan.created
    assert sum(new.memory_bytes for new in plan.creates) == gib * GIB


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(0, 3)), max_size=4), st.integers(0, 40))
def test_reachable_sums_are_those_of_all_subsets(
    classes: list[tuple[int, int]], ceiling: int
) -> None:
    pieces = [piece for piece, count in classes for _ in range(count)]
    every_sum = {
        sum(chosen) for count in range(len(pieces) + 1) for chosen in combinations(pieces, count)
    }
    sums = ReachableSums(
        [PieceClass(memory_bytes=piece, piece_count=count) for piece, count in classes], ceiling
    )

    for target in range(ceiling + 1):
        at_most = sums.largest_at_most(target)
        assert at_most == max(s for s in every_sum if s <= target)
        counts = sums.piece_counts(at_most)
        assert sum(c * p for c, (p, _) in zip(counts, classes, strict=True)) == at_most
        assert all(c <= have for c, (_, have) in zip(counts, classes, strict=True))
        assert sums.smallest_at_least(target) == min(
            (s for s in every_sum if target <= s <= ceiling), default=None
        )
