from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commitments.domain import handover
from commitments.domain.handover import FreedSlot, SlotDemand, plan_cuts, plan_handover


def slots(*sizes: int, project: str = "alpha", vms: Sequence[int] = ()) -> list[FreedSlot]:
    return [
        FreedSlot(
            slot_id=position,
            project_id=project,
            memory_bytes=size,
            has_allocations=position in vms,
        )
        for position, size in enumerate(sizes)
    ]


def demands(*rows: tuple[str, int]) -> list[SlotDemand]:
    return [
        SlotDemand(commitment_uuid=f"{project}-{position}", project_id=project, memory_bytes=size)
        for position, (project, size) in enumerate(rows)
    ]


def test_a_split_hands_everything_over() -> None:
    found = plan_handover(slots(*[1] * 10, vms=[2, 7]), demands(("alpha", 3), ("alpha", 7)))

    assert found.leftover_ids == ()
    assert found.missing_bytes == {"alpha-0": 0, "alpha-1": 0}
    assert {i for i, uuid in found.new_owners.items() if uuid == "alpha-0"} == {0, 2, 7}


def test_a_merge_hands_everything_over() -> None:
    found = plan_handover(slots(*[1] * 10), demands(("alpha", 10)))

    assert found.leftover_ids == ()
    assert set(found.new_owners.values()) == {"alpha-0"}
    assert list(found.new_owners) == list(range(10))


@pytest.mark.parametrize(
    ("vms", "missing_at_beta"),
    [
        pytest.param([], 0, id="no VMs"),
        pytest.param([0, 1, 2], 0, id="three VMs stay with alpha"),
        pytest.param([1, 2, 3, 4], 1, id="four VMs"),
        pytest.param([0, 1, 2, 3, 4], 2, id="alpha's VMs occupy all"),
    ],
)
def test_another_project_gets_slots_without_vms_only(vms: list[int], missing_at_beta: int) -> None:
    found = plan_handover(slots(*[1] * 5, vms=vms), demands(("beta", 2), ("alpha", 3)))

    assert found.missing_bytes == {"beta-0": missing_at_beta, "alpha-1": 0}
    to_beta = {slot_id for slot_id, uuid in found.new_owners.items() if uuid == "beta-0"}
    assert not to_beta & set(vms)


def test_whole_slots_never_overshoot_a_demand() -> None:
    found = plan_handover(slots(8, 8), demands(("alpha", 12)))

    assert found.leftover_ids == (1,)
    assert found.missing_bytes == {"alpha-0": 4}


def test_placed_slots_are_preferred_to_unplaced_ones() -> None:
    offered = [
        FreedSlot(slot_id=1, project_id="alpha", memory_bytes=4, is_placed=False),
        FreedSlot(slot_id=2, project_id="alpha", memory_bytes=4),
    ]

    assert plan_handover(offered, demands(("alpha", 4))).leftover_ids == (1,)


def test_slots_with_vms_win_over_a_larger_total() -> None:
    found = plan_handover(slots(3, 2, 4, vms=[2]), demands(("alpha", 5)))

    assert found.leftover_ids == (0, 1)
    assert found.missing_bytes == {"alpha-0": 1}


def test_filling_one_demand_does_not_spoil_the_next() -> None:
    found = plan_handover(slots(4, 2, 5), demands(("alpha", 6), ("alpha", 4)))

    assert found.new_owners == {2: "alpha-0", 0: "alpha-1"}
    assert found.missing_bytes == {"alpha-0": 1, "alpha-1": 0}


def test_too_many_possibilities_are_filled_one_demand_after_the_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(handover, "MAX_EXACT_STATES", 3)

    found = plan_handover(slots(4, 2, 5), demands(("alpha", 6), ("alpha", 4)))

    assert found.new_owners == {0: "alpha-0", 1: "alpha-0"}
    assert found.missing_bytes == {"alpha-0": 0, "alpha-1": 4}


SLOTS = st.lists(
    st.builds(
        FreedSlot,
        slot_id=st.integers(0, 99),
        project_id=st.just("alpha"),
        memory_bytes=st.integers(1, 6),
        has_allocations=st.booleans(),
        is_placed=st.booleans(),
        closed_to=st.sampled_from([frozenset(), frozenset({"beta"})]),
    ),
    max_size=6,
    unique_by=lambda slot: slot.slot_id,
)


@settings(max_examples=200)
@given(SLOTS, st.sampled_from(["alpha", "beta"]), st.lists(st.integers(0, 12), max_size=3))
def test_nothing_better_can_be_handed_to_a_project(
    everything: list[FreedSlot], project: str, sizes: list[int]
) -> None:
    wanted = demands(*[(project, size) for size in sizes])
    found = plan_handover(everything, wanted)
    offered = [slot for slot in everything if project == "alpha" or is_free_for_beta(slot)]

    best = (0, 0)
    for choice in product(range(len(sizes) + 1), repeat=len(offered)):
        taken = [0] * (len(sizes) + 1)
        for slot, position in zip(offered, choice, strict=True):
            taken[position] += slot.memory_bytes
        if all(got <= size for got, size in zip(taken, sizes, strict=False)):
            given_away = [s for s, p in zip(offered, choice, strict=True) if p < len(sizes)]
            with_vms = sum(s.memory_bytes for s in given_away if s.has_allocations)
            best = max(best, (with_vms, sum(s.memory_bytes for s in given_away)))
    handed = [slot for slot in everything if slot.slot_id in found.new_owners]
    with_vms = sum(slot.memory_bytes for slot in handed if slot.has_allocations)
    assert (with_vms, sum(slot.memory_bytes for slot in handed)) == best


@given(
    SLOTS,
    st.lists(st.tuples(st.sampled_from(["alpha", "beta"]), st.integers(0, 12)), max_size=3),
)
def test_every_slot_has_one_place_and_no_demand_overshoots(
    offered: list[FreedSlot], rows: list[tuple[str, int]]
) -> None:
    wanted = demands(*rows)
    found = plan_handover(offered, wanted)
    projects = {demand.commitment_uuid: demand.project_id for demand in wanted}

    assert set(found.new_owners) | set(found.leftover_ids) == {s.slot_id for s in offered}
    assert not set(found.new_owners) & set(found.leftover_ids)
    for demand in wanted:
        got = sum(
            slot.memory_bytes
            for slot in offered
            if found.new_owners.get(slot.slot_id) == demand.commitment_uuid
        )
        assert found.missing_bytes[demand.commitment_uuid] == demand.memory_bytes - got >= 0
    for slot in offered:
        if slot.slot_id in found.new_owners and not is_free_for_beta(slot):
            assert projects[found.new_owners[slot.slot_id]] == slot.project_id


def is_free_for_beta(slot: FreedSlot) -> bool:
    return not slot.has_allocations and "beta" not in slot.closed_to


def test_filling_one_demand_after_the_other_leaves_out_slots_of_closed_hosts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(handover, "MAX_EXACT_STATES", 0)
    offered = [replace(slot, closed_to=frozenset({"beta"})) for slot in slots(4, 2)]

    found = plan_handover([*offered, *slots(0, 0, 5)[2:]], demands(("beta", 6)))

    assert found.new_owners == {2: "beta-0"}


def test_a_slot_is_cut_for_two_halves() -> None:
    (cut,) = plan_cuts(slots(8, vms=[0]), demands(("alpha", 3), ("alpha", 5)))

    assert cut.shares == (("alpha-0", 3), ("alpha-1", 5))
    assert cut.rest_bytes == 0


def test_what_another_project_lacks_is_cut_off_a_slot_without_vms() -> None:
    wanted = demands(("beta", 5), ("alpha", 2))

    (cut,) = plan_cuts(slots(8), wanted)
    assert cut.shares == (("alpha-1", 2), ("beta-0", 5))
    assert cut.rest_bytes == 1
    (cut,) = plan_cuts(slots(8, vms=[0]), wanted)
    assert cut.shares == (("alpha-1", 2),)


@given(SLOTS, st.lists(st.tuples(st.sampled_from(["alpha", "beta"]), st.integers(0, 12))))
def test_cuts_leave_nothing_missing_that_is_there(
    offered: list[FreedSlot], rows: list[tuple[str, int]]
) -> None:
    """Filling byte by byte, as slowly as can be, gives each project no more than cutting does."""
    wanted = demands(*rows)
    placed = [slot for slot in offered if slot.is_placed]
    bytes_left = {
        is_free: sum(s.memory_bytes for s in placed if is_free_for_beta(s) is is_free)
        for is_free in (True, False)
    }
    for project in ("alpha", "beta"):
        asked = sum(demand.memory_bytes for demand in wanted if demand.project_id == project)
        given_away = sum(
            share
            for cut in plan_cuts(offered, wanted)
            for uuid, share in cut.shares
            if uuid.startswith(project)
        )
        got = 0
        while got < asked and any(bytes_left[kind] for kind in _usable(project)):
            kind = next(kind for kind in _usable(project) if bytes_left[kind])
            bytes_left[kind] -= 1
            got += 1
        assert given_away == got
    for cut in plan_cuts(offered, wanted):
        slot = next(s for s in offered if s.slot_id == cut.slot_id)
        assert sum(share for _, share in cut.shares) + cut.rest_bytes == slot.memory_bytes


def _usable(project: str) -> tuple[bool, ...]:
    return (False, True) if project == "alpha" else (True,)
