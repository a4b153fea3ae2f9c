"""Slots that find no host are cut: what fits in any way is held, against every way there is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capacity.figures.zone_capacity import zone_figures
from capacity.groups.flavor_groups import FlavorGroupDef, FlavorSpec
from commitments.domain.admission import (
    AdmissionPlan,
    AdmissionSnapshot,
    CommitmentTarget,
    plan_admission,
)
from commitments.domain.planner import SlotView
from commitments.domain.slot_room import SlotRoom
from commitments.domain.state import CommitmentState
from commitments.domain.statuses import CommitmentStatus, ResourceType, Ruling
from scheduling.resources import GIB, ResourceVector
from scheduling.table import HostTable
from scheduling.table_rows import HostRow
from tests.domain.commitments.test_admission import NOW

FAST = "CUSTOM_FAST"


@dataclass(frozen=True)
class Size:
    """A flavor: memory in GiB, vCPUs, and whether only fast hosts may have it."""

    memory: int
    vcpus: int
    is_fast: bool = False

    def flavor(self) -> FlavorSpec:
        name = f"m{self.memory}-c{self.vcpus}{'-fast' * self.is_fast}"
        specs = {f"trait:{FAST}": "required"} if self.is_fast else {}
        return FlavorSpec(
            name=name, vcpus=self.vcpus, memory_bytes=self.memory * GIB, extra_specs=specs
        )


@dataclass(frozen=True)
class Room:
    """A host: memory in GiB, vCPUs, and whether it is fast."""

    memory: int
    vcpus: int
    is_fast: bool = False


def group_of(*sizes: Size, name: str = "g") -> FlavorGroupDef:
    flavors = sorted(
        (size.flavor() for size in sizes), key=lambda f: (-f.memory_bytes, -f.vcpus, f.name)
    )
    return FlavorGroupDef(name=name, flavors=tuple(flavors))


def table_of(rooms: Sequence[Room]) -> HostTable:
    return HostTable.from_rows(
        [
            HostRow(
                name=f"h{number}",
                host_id=number,
                zone="az",
                effective=ResourceVector(memory_bytes=room.memory * GIB, vcpus=room.vcpus),
                traits=frozenset({FAST}) if room.is_fast else frozenset(),
            )
            for number, room in enumerate(rooms)
        ]
    )


def wanting(
    amount: int, uuid: str = "c", slots: Sequence[SlotView] = (), group: str = "g"
) -> CommitmentTarget:
    desired = CommitmentState(
        commitment_uuid=uuid,
        project_id="p",
        domain_id="d",
        flavor_group_name=group,
        zone="az",
        resource_type=ResourceType.MEMORY,
        requested_amount=amount * GIB,
        status=CommitmentStatus.CONFIRMED,
        end_time=NOW + timedelta(days=1),
    )
    return CommitmentTarget(
        commitment_uuid=uuid, desired=desired, is_holding=amount > 0, slots=tuple(slots)
    )


def planned(
    rooms: Sequence[Room],
    sizes: Sequence[Size],
    *targets: CommitmentTarget,
    may_reject: bool = True,
    max_slots: int = 0,
) -> AdmissionPlan:
    snapshot = AdmissionSnapshot(
        hosts=table_of(rooms),
        groups={"g": group_of(*sizes)},
        rooms={slot.slot_id: SlotRoom() for target in targets for slot in target.slots},
        max_slots=max_slots,
    )
    return plan_admission(snapshot, targets, may_reject=may_reject, now=NOW)


def is_granted(rooms: Sequence[Room], sizes: Sequence[Size], amount: int) -> bool:
    return planned(rooms, sizes, wanting(amount)).decisions[0].outcome is Ruling.ACCEPTED


def held_sizes(plan: AdmissionPlan, number: int = 0) -> list[tuple[str, int]]:
    return [
        (placement.resource_name, placement.slot.memory_bytes // GIB)
        for placement in plan.decisions[number].placements
        if placement.host_id is not None
    ]


def fillings(room: Room, sizes: Sequence[Size], rest: Size) -> set[tuple[int, bool]]:
    """Return every sum of slots on a host, and whether one of them is smaller than every flavor."""
    usable = [size for size in sizes if room.is_fast or not size.is_fast]
    found: set[tuple[int, bool]] = set()
    pending = [(0, room.memory, room.vcpus, False)]
    seen = set(pending)
    while pending:
        held, memory, vcpus, has_rest = pending.pop()
        found.add((held, has_rest))
        taken = [(size.memory, size.vcpus, has_rest) for size in usable]
        if not has_rest and (room.is_fast or not rest.is_fast):
            taken += [(part, rest.vcpus, True) for part in range(1, rest.memory)]
        for part, cores, ends in taken:
            after = (held + part, memory - part, vcpus - cores, ends)
            if after[1] >= 0 and after[2] >= 0 and after not in seen:
                seen.add(after)
                pending.append(after)
    return found


def largest_amount(rooms: Sequence[Room], sizes: Sequence[Size]) -> int:
    """Search every way: whole slots, and at most one that is smaller than every flavor."""
    rest = min(sizes, key=lambda size: (size.memory, size.vcpus))
    per_host = [fillings(room, sizes, rest) for room in rooms]
    return max(
        sum(held for held, _ in chosen)
        for chosen in product(*per_host)
        if sum(has_rest for _, has_rest in chosen) <= 1
    )


size_list = st.lists(
    st.builds(Size, st.integers(1, 8), st.integers(1, 4), st.booleans()),
    min_size=1,
    max_size=3,
    unique_by=lambda size: (size.memory, size.vcpus),
)
room_list = st.lists(
    st.builds(Room, st.integers(0, 14), st.integers(0, 6), st.booleans()), min_size=1, max_size=3
)


@given(rooms=room_list, sizes=size_list)
def test_what_any_way_can_hold_is_granted_in_one_request_and_no_more(
    rooms: list[Room], sizes: list[Size]
) -> None:
    largest = largest_amount(rooms, sizes)
    for amount in range(1, largest + 1):
        assert is_granted(rooms, sizes, amount)
    assert not is_granted(rooms, sizes, largest + 1)


@given(rooms=room_list, sizes=size_list)
def test_what_is_published_is_granted_and_lacks_less_than_the_smallest_flavor(
    rooms: list[Room], sizes: list[Size]
) -> None:
    group = group_of(*sizes)
    figures = zone_figures(table_of(rooms), "az", [group]).groups["g"]
    published = figures.exclusive.memory_bytes // GIB
    assert figures.exclusive == figures.free
    assert all(is_granted(rooms, sizes, amount) for amount in range(1, published + 1))
    assert largest_amount(rooms, sizes) - published < group.smallest.memory_bytes // GIB


@given(rooms=room_list, shared=st.lists(size_list, min_size=2, max_size=3))
def test_shares_of_groups_that_compete_are_granted_each_in_one_request(
    rooms: list[Room], shared: list[list[Size]]
) -> None:
    groups = [group_of(*sizes, name=f"g{number}") for number, sizes in enumerate(shared)]
    figures = zone_figures(table_of(rooms), "az", groups).groups
    for number, sizes in enumerate(shared):
        published = figures[f"g{number}"].exclusive.memory_bytes // GIB
        assert published <= figures[f"g{number}"].free.memory_bytes // GIB
        assert all(is_granted(rooms, sizes, amount) for amount in range(1, published + 1))
    together = sum(one.exclusive.memory_bytes for one in figures.values())
    assert together <= sum(room.memory for room in rooms) * GIB


@given(rooms=room_list, sizes=size_list, amount=st.integers(1, 30))
def test_slots_of_a_plan_fit_their_hosts_and_add_up(
    rooms: list[Room], sizes: list[Size], amount: int
) -> None:
    flavors = {flavor.name: flavor for flavor in group_of(*sizes).flavors}
    for may_reject in (True, False):
        plan = planned(rooms, sizes, wanting(amount), may_reject=may_reject)
        decision = plan.decisions[0]
        assert decision.slot_plan is not None
        assert sum(new.memory_bytes for new in decision.slot_plan.creates) == amount * GIB
        assert decision.slot_plan.total_slots == len(decision.placements)
        odd = [
            new
            for new in decision.slot_plan.creates
            if new.memory_bytes != flavors[new.resource_name].memory_bytes
        ]
        assert len(odd) <= 1 or decision.outcome is not Ruling.ACCEPTED
        assert all(new.memory_bytes < flavors[new.resource_name].memory_bytes for new in odd)
        assert all(new.vcpus == flavors[new.resource_name].vcpus for new in odd)
        for number, room in enumerate(rooms):
            delta = plan.block_deltas.get(number, ResourceVector())
            assert delta.memory_bytes <= room.memory * GIB
            assert delta.vcpus <= room.vcpus


@given(rooms=room_list, sizes=size_list, amount=st.integers(1, 30), room=room_list)
def test_what_waits_is_cut_once_there_is_room_and_stays_as_it_is_until_then(
    rooms: list[Room], sizes: list[Size], amount: int, room: list[Room]
) -> None:
    plan = planned(rooms, sizes, wanting(amount), may_reject=False)
    stored = stored_slots(plan)
    nothing_new = [replace(one, memory=0) for one in rooms]
    again = planned(nothing_new, sizes, wanting(amount, slots=stored), may_reject=False)
    assert not again.decisions[0].changes_slots
    assert again.released_slot_ids == ()
    waiting = sum(slot.memory_bytes for slot in stored if slot.target_host is None) // GIB
    later = planned(room, sizes, wanting(amount, slots=stored), may_reject=False)
    after = stored_slots(later, stored)
    assert sum(slot.memory_bytes for slot in after) == amount * GIB
    assert (later.decisions[0].outcome is Ruling.ACCEPTED) or waiting > 0
    if waiting and largest_amount(room, sizes) >= waiting:
        assert later.decisions[0].outcome is Ruling.ACCEPTED


def stored_slots(plan: AdmissionPlan, before: Sequence[SlotView] = ()) -> list[SlotView]:
    """Return the slots of the first commitment after its plan was applied."""
    decision = plan.decisions[0]
    kept = {slot.slot_id: slot for slot in before if slot.slot_id not in plan.released_slot_ids}
    numbers = [slot.slot_index for slot in kept.values()]
    for placement in decision.placements:
        host = f"h{placement.host_id}" if placement.host_id is not None else None
        if placement.slot_id is not None:
            kept[placement.slot_id] = replace(kept[placement.slot_id], target_host=host)
            continue
        assert placement.slot_index not in numbers
        numbers.append(placement.slot_index)
        kept[1000 + placement.slot_index] = SlotView(
            slot_id=1000 + placement.slot_index,
            slot_index=placement.slot_index,
            project_id="p",
            domain_id="d",
            flavor_group_name="g",
            zone="az",
            memory_bytes=placement.slot.memory_bytes,
            vcpus=placement.slot.vcpus,
            resource_name=placement.resource_name,
            target_host=host,
            commitment_uuid="c",
        )
    return list(kept.values())


LMS = (Size(16, 16), Size(4, 4), Size(1, 1))


@pytest.mark.parametrize(
    ("rooms", "sizes", "amount", "held"),
    [
        pytest.param([Room(32, 32)], LMS, 32, {16: 2}, id="whole where there is room"),
        pytest.param(
            [Room(16, 16), Room(6, 6)], LMS, 20, {16: 1, 4: 1}, id="the largest that all fit as"
        ),
        pytest.param(
            [Room(9, 9), Room(9, 9)], LMS, 18, {4: 4, 1: 2}, id="only what finds no host is cut"
        ),
        pytest.param(
            [Room(18, 18), Room(15, 15)],
            LMS,
            32,
            {16: 1, 4: 3, 1: 4},
            id="one slot whole, one cut twice",
        ),
        pytest.param(
            [Room(6, 2)] * 2,
            (Size(4, 1), Size(3, 1)),
            12,
            {3: 4},
            id="smaller ones where larger ones waste",
        ),
        pytest.param(
            [Room(64, 3)], (Size(16, 1), Size(4, 1), Size(2, 2)), 48, {16: 3}, id="few vCPUs"
        ),
        pytest.param(
            [Room(64, 3)], (Size(16, 2), Size(4, 1)), 20, {16: 1, 4: 1}, id="a mixture of both"
        ),
        pytest.param(
            [Room(5, 1)], (Size(5, 1), Size(3, 1)), 4, {4: 1}, id="a part of a larger flavor"
        ),
        pytest.param([Room(7, 7)], (Size(4, 1),), 7, {4: 1, 3: 1}, id="and a rest of the smallest"),
    ],
)
def test_slots_are_as_large_as_all_of_them_can_be(
    rooms: list[Room], sizes: Sequence[Size], amount: int, held: dict[int, int]
) -> None:
    plan = planned(rooms, sizes, wanting(amount))
    assert plan.decisions[0].outcome is Ruling.ACCEPTED
    assert Counter(memory for _, memory in held_sizes(plan)) == held


def test_a_refusal_tells_of_the_smallest_slot_and_counts_what_was_cut() -> None:
    decision = planned([Room(18, 18), Room(5, 5)], LMS, wanting(32)).decisions[0]
    assert decision.message == "insufficient capacity: 5/8 reservation slots could be placed"
    refused = next(one for one in decision.placements if one.host_id is None)
    assert refused.decision is not None
    assert refused.decision.request.memory_bytes == GIB


def test_what_is_cut_obeys_the_limit_of_slots() -> None:
    rooms, sizes = [Room(9, 9), Room(9, 9)], LMS
    decision = planned(rooms, sizes, wanting(18), max_slots=6).decisions[0]
    assert decision.outcome is Ruling.ACCEPTED
    decision = planned(rooms, sizes, wanting(18), max_slots=5).decisions[0]
    assert decision.outcome is Ruling.REJECTED
    assert decision.exceeds_slot_limit
    assert decision.message == "commitment would create 6 new reservation slots, exceeds limit of 5"


def test_a_slot_with_vms_is_never_cut() -> None:
    held = SlotView(
        slot_id=1,
        slot_index=0,
        project_id="p",
        domain_id="d",
        flavor_group_name="g",
        zone="az",
        memory_bytes=4 * GIB,
        vcpus=4,
        resource_name="m4-c4",
        has_allocations=True,
        allocated_memory_bytes=GIB,
        commitment_uuid="c",
    )
    rooms = [Room(3, 3), Room(3, 3)]
    plan = planned(rooms, LMS, wanting(4, slots=[held]), may_reject=False)
    assert plan.released_slot_ids == ()
    assert plan.decisions[0].outcome is Ruling.RESERVING
    assert not plan.decisions[0].changes_slots
    empty = replace(held, has_allocations=False, allocated_memory_bytes=0)
    plan = planned(rooms, LMS, wanting(4, slots=[empty]), may_reject=False)
    assert plan.released_slot_ids == (1,)
    assert plan.decisions[0].outcome is Ruling.ACCEPTED
    assert held_sizes(plan) == [("m1-c1", 1)] * 4


def test_commitments_of_a_batch_see_what_those_before_them_hold() -> None:
    targets = [wanting(6, "a"), wanting(4, "b")]
    plan = planned([Room(9, 9), Room(1, 1)], LMS, *targets)
    assert [decision.outcome for decision in plan.decisions] == [Ruling.ACCEPTED] * 2
    plan = planned([Room(9, 9)], LMS, *targets)
    assert plan.decisions[1].message == (
        "insufficient capacity: 3/4 reservation slots could be placed"
    )
