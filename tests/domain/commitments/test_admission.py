from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capacity.groups.flavor_groups import FlavorGroupDef, FlavorSpec
from capacity.ledger.placing import place_slots, table_with_released
from capacity.ledger.slot_request import SlotAsk
from commitments.domain.admission import (
    AdmissionPlan,
    AdmissionSnapshot,
    CommitmentTarget,
    plan_admission,
)
from commitments.domain.cores_account import CoresLedger
from commitments.domain.planner import SlotView
from commitments.domain.slot_room import SlotRoom, shrunk_block
from commitments.domain.state import CommitmentState
from commitments.domain.statuses import Cause, CommitmentStatus, ResourceType, Ruling
from commitments.domain.succession import hand_over_slots
from scheduling.needs import Needs
from scheduling.resources import GIB, ZERO, ResourceVector
from scheduling.table import HostTable
from scheduling.table_rows import HostRow

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
SMALL = FlavorSpec(name="small", vcpus=1, memory_bytes=GIB)
LARGE = FlavorSpec(name="large", vcpus=4, memory_bytes=4 * GIB)
GROUP = FlavorGroupDef(name="g", flavors=(LARGE, SMALL), ram_core_ratio_mib=1024)


def gib(memory_gib: int, vcpus: int | None = None) -> ResourceVector:
    return ResourceVector(
        memory_bytes=memory_gib * GIB, vcpus=memory_gib if vcpus is None else vcpus
    )


def host(number: int, room_gib: int, committed: ResourceVector = ZERO) -> HostRow:
    return HostRow(
        name=f"h{number}", host_id=number, zone="az", effective=gib(room_gib), committed=committed
    )


def state(
    uuid: str,
    amount: int,
    status: CommitmentStatus = CommitmentStatus.CONFIRMED,
    resource_type: ResourceType = ResourceType.MEMORY,
    project_id: str = "p",
) -> CommitmentState:
    return CommitmentState(
        commitment_uuid=uuid,
        project_id=project_id,
        domain_id="d",
        flavor_group_name="g",
        zone="az",
        resource_type=resource_type,
        requested_amount=amount * GIB if resource_type is ResourceType.MEMORY else amount,
        status=status,
        end_time=NOW + timedelta(days=1),
    )


def target(
    desired: CommitmentState | None, uuid: str = "", slots: Sequence[SlotView] = ()
) -> CommitmentTarget:
    return CommitmentTarget(
        commitment_uuid=uuid or (desired.commitment_uuid if desired else ""),
        desired=desired,
        is_holding=desired is not None and desired.effective_amount(NOW) > 0,
        is_planned=desired is not None and desired.status is CommitmentStatus.PLANNED,
        slots=tuple(slots),
    )


def slot(slot_id: int, uuid: str, memory_gib: int = 1, **fields: object) -> SlotView:
    view = SlotView(
        slot_id=slot_id,
        slot_index=slot_id,
        project_id="p",
        domain_id="d",
        flavor_group_name="g",
        zone="az",
        memory_bytes=memory_gib * GIB,
        vcpus=memory_gib,
        resource_name="small" if memory_gib == 1 else "large",
        target_host="h1",
        commitment_uuid=uuid,
    )
    return replace(view, **fields)  # type: ignore[arg-type] # fields of several types


def plan(
    hosts: Sequence[HostRow],
    targets: Sequence[CommitmentTarget],
    *,
    may_reject: bool = True,
    rooms: dict[int, SlotRoom] | None = None,
    cores: int | None = 16,
    max_slots: int = 0,
) -> AdmissionPlan:
    snapshot = AdmissionSnapshot(
        hosts=HostTable.from_rows(hosts),
        groups={"g": GROUP},
        rooms=rooms or {},
        cores={("g", "az"): CoresLedger(total_vcpus=cores)},
        max_slots=max_slots,
    )
    return plan_admission(snapshot, targets, may_reject=may_reject, now=NOW)


def test_unknown_group_is_refused_with_its_name() -> None:
    unknown = target(replace(state("c-1", 1), flavor_group_name="nosuch"))
    decision = plan([host(1, 8)], [unknown]).decisions[0]
    assert (decision.outcome, decision.cause) == (Ruling.REJECTED, Cause.STRUCTURAL)
    assert decision.message == "flavor group not found: nosuch"


def test_zone_without_hosts_has_no_capacity() -> None:
    elsewhere = target(replace(state("c-1", 1), zone="az-9"))
    decision = plan([host(1, 8)], [elsewhere]).decisions[0]
    assert decision.message == "insufficient capacity: 0/1 reservation slots could be placed"


def test_slot_limit_is_a_structural_no() -> None:
    decision = plan([host(1, 8)], [target(state("c-1", 3))], max_slots=2).decisions[0]
    assert decision.message == "commitment would create 3 new reservation slots, exceeds limit of 2"
    assert decision.cause is Cause.STRUCTURAL


def test_flavor_without_vcpus_cannot_be_placed() -> None:
    bare = FlavorGroupDef(name="g", flavors=(FlavorSpec(name="bare", vcpus=0, memory_bytes=GIB),))
    snapshot = AdmissionSnapshot(hosts=HostTable.from_rows([host(1, 8)]), groups={"g": bare})
    decided = plan_admission(snapshot, [target(state("c-1", 1))], may_reject=True, now=NOW)
    assert decided.decisions[0].outcome is Ruling.REJECTED


def test_shrunk_slot_with_vms_gives_its_free_part_back() -> None:
    held = slot(1, "c-1", 4, has_allocations=True, allocated_memory_bytes=GIB)
    rooms = {1: SlotRoom(host_ids=(1,), blocked=gib(3), confirmed=gib(1))}
    decided = plan([host(1, 8, gib(3))], [target(state("c-1", 2), slots=[held])], rooms=rooms)
    assert decided.block_deltas == {1: ResourceVector(memory_bytes=-2 * GIB, vcpus=-2)}


def test_immense_amount_is_refused_without_planning_its_slots() -> None:
    decision = plan([host(1, 8)], [target(state("c-1", 10**9))]).decisions[0]
    assert (
        decision.message == "insufficient capacity: 0/250000000 reservation slots could be placed"
    )
    assert decision.slot_plan is None
    nowhere = target(replace(state("c-1", 10**9), zone="az-9"))
    assert plan([host(1, 8)], [nowhere]).decisions[0].slot_plan is None


def test_surplus_slots_are_released_with_their_blocks() -> None:
    slots = [slot(1, "c-1"), slot(2, "c-1")]
    rooms = {n: SlotRoom(host_ids=(1,), blocked=gib(1)) for n in (1, 2)}
    decided = plan([host(1, 8, gib(2))], [target(state("c-1", 1), slots=slots)], rooms=rooms)
    assert decided.released_slot_ids == (1,)
    assert decided.block_deltas == {1: ZERO - gib(1)}


def test_commitment_without_amount_or_start_holds_nothing() -> None:
    planned = target(state("c-1", 3, CommitmentStatus.PLANNED))
    ended = target(state("c-2", 3, CommitmentStatus.EXPIRED), slots=[slot(7, "c-2")])
    rooms = {7: SlotRoom(host_ids=(1,), blocked=gib(1))}
    decided = plan([host(1, 8, gib(1))], [planned, ended], rooms=rooms)
    assert decided.block_deltas == {1: ZERO - gib(1)}
    assert [d.outcome for d in decided.decisions] == [Ruling.PLANNED, Ruling.RELEASED]


def test_unknown_cores_are_a_passing_cause() -> None:
    decided = plan([], [target(state("c-1", 1, resource_type=ResourceType.CORES))], cores=None)
    assert decided.rejections[0].cause is Cause.TRANSIENT


def test_shrunk_slot_without_a_host_blocks_nothing() -> None:
    held = slot(1, "c-1", 4, has_allocations=True, allocated_memory_bytes=GIB, target_host=None)
    decided = plan(
        [host(1, 8)],
        [target(state("c-1", 2), slots=[held])],
        rooms={1: SlotRoom()},
    )
    assert decided.decisions[0].outcome is Ruling.ACCEPTED
    assert sum(delta.memory_bytes for delta in decided.block_deltas.values()) == 4 * GIB


@pytest.mark.parametrize(
    ("room", "block"),
    [
        (SlotRoom(host_ids=(1,), confirmed=gib(1)), gib(1)),
        (SlotRoom(host_ids=(1,), confirmed=gib(3)), gib(0)),
        (SlotRoom(host_ids=(1, 2), confirmed=gib(1)), gib(2)),
        (SlotRoom(host_ids=(1, 2), expected=gib(3)), gib(3)),
    ],
    ids=["vm inside", "vm larger", "moving", "moving with a larger vm expected"],
)
def test_block_of_a_shrunk_slot(room: SlotRoom, block: ResourceVector) -> None:
    assert shrunk_block(room, gib(2)) == block


def test_cores_accepted_before_are_accepted_again_without_room() -> None:
    again = replace(target(state("c-1", 16, resource_type=ResourceType.CORES)), accepted_cores=16)
    other = target(state("c-2", 1, resource_type=ResourceType.CORES))
    decided = plan([], [again, other], cores=16)
    assert [d.outcome for d in decided.decisions] == [Ruling.ACCEPTED, Ruling.REJECTED]


def test_released_blocks_of_unknown_hosts_change_nothing() -> None:
    table = HostTable.from_rows([host(1, 8, gib(4))])
    changed = table_with_released(table, {1: ZERO - gib(1), 7: ZERO - gib(1), 2: ZERO})
    assert changed.committed_memory_bytes.tolist() == [3 * GIB]
    assert table_with_released(table, {1: ZERO}) is table


def test_released_needs_are_there_for_others_and_held_ones_are_not() -> None:
    table = HostTable.from_rows([host(1, 8, gib(4)), host(2, 8, gib(4))])
    left = table.others_left.tolist()
    needs = {1: Needs(network=-5, gpu=-1), 2: Needs(disk_io=3), 9: Needs(gpu=1)}
    changed = table_with_released(table, {2: gib(1)}, needs)
    assert changed.others_left.tolist() == [
        [left[0][0] + 5, left[0][1], left[0][2] + 1],
        [left[1][0], left[1][1] - 3, left[1][2]],
    ]
    moved = changed.committed_memory_bytes - table.committed_memory_bytes
    assert moved.tolist() == [0, GIB]
    assert table_with_released(table, {}, {1: Needs()}) is table


def test_no_ask_asks_no_host() -> None:
    ask = SlotAsk(
        slot_id=None,
        slot_index=0,
        slot_name="c-0",
        flavor=SMALL,
        slot=ResourceVector(memory_bytes=GIB, vcpus=0),
        zone="az",
        project_id="p",
    )
    assert place_slots(HostTable.from_rows([host(1, 8)]), [ask]) == (None,)


def anywhere(_slot: SlotView, _desired: CommitmentState) -> bool:
    """Say of every host that VMs of every project may be there."""
    return True


def test_handover_prefers_slots_with_vms_and_large_ones() -> None:
    ending = target(
        None,
        "c-old",
        [
            slot(1, "c-old"),
            slot(2, "c-old", 4),
            slot(3, "c-old", has_allocations=True, allocated_memory_bytes=GIB),
        ],
    )
    result = hand_over_slots([target(state("c-new", 5)), ending], NOW, anywhere)
    assert [(h.slot_id, h.slot_index) for h in result.handovers] == [(2, 0), (3, 1)]
    assert result.surplus_ids == (1,)


def test_slots_with_vms_stay_with_their_project() -> None:
    ending = target(None, "c-old", [slot(1, "c-old", has_allocations=True)])
    beginning = target(state("c-new", 1, project_id="other"))
    assert hand_over_slots([ending, beginning], NOW, anywhere).handovers == ()


@pytest.mark.parametrize(
    ("project_id", "receives"), [("p", True), ("other", False)], ids=["own", "of another"]
)
def test_pending_commitments_receive_what_is_left_in_their_project(
    project_id: str, *, receives: bool
) -> None:
    ending = target(None, "c-old", [slot(1, "c-old"), slot(2, "c-old")])
    waiting = target(state("c-new", 2, CommitmentStatus.PENDING, project_id=project_id))
    promised = target(state("c-first", 1))
    result = hand_over_slots([ending, waiting, promised], NOW, anywhere)
    assert [slot.slot_id for slot in result.kept["c-first"]] == [1]
    assert [slot.slot_id for slot in result.kept["c-new"]] == ([2] if receives else [])
    assert result.surplus_ids == (() if receives else (2,))


amounts = st.lists(st.integers(1, 12), min_size=1, max_size=6)
rooms_gib = st.lists(st.integers(1, 12), min_size=1, max_size=5)


def assert_fits(hosts: Sequence[HostRow], decided: AdmissionPlan) -> None:
    for row in hosts:
        delta = decided.block_deltas.get(row.host_id, ZERO)
        assert (row.committed + delta).fits_into(row.effective)


@given(rooms_gib, amounts, st.booleans())
def test_capacity_is_never_exceeded_and_a_yes_holds_everything(
    room_sizes: list[int], wanted: list[int], may_reject: bool
) -> None:
    hosts = [host(number, room) for number, room in enumerate(room_sizes, start=1)]
    targets = [target(state(f"commit-{number}", a)) for number, a in enumerate(wanted)]
    decided = plan(hosts, targets, may_reject=may_reject)
    if not (may_reject and decided.rejections):
        assert_fits(hosts, decided)
    for decision, amount in zip(decided.decisions, wanted, strict=True):
        placed = [p for p in decision.placements if p.decision and p.decision.host_id is not None]
        if decision.outcome is Ruling.ACCEPTED:
            assert sum(p.slot.memory_bytes for p in placed) == amount * GIB
        else:
            refusal = Ruling.REJECTED if may_reject else Ruling.RESERVING
            assert decision.outcome is refusal
    assert decided == plan(hosts, targets, may_reject=may_reject)
    assert decided.block_deltas == plan(hosts[::-1], targets, may_reject=may_reject).block_deltas


@given(rooms_gib, amounts)
def test_single_slots_fit_exactly_when_a_greedy_count_says_so(
    room_sizes: list[int], wanted: list[int]
) -> None:
    """With slots of one size, placing is counting: the slow oracle adds up whole slots."""
    only_small = FlavorGroupDef(name="g", flavors=(SMALL,), ram_core_ratio_mib=1024)
    hosts = [host(number, room) for number, room in enumerate(room_sizes, start=1)]
    snapshot = AdmissionSnapshot(hosts=HostTable.from_rows(hosts), groups={"g": only_small})
    targets = [target(state(f"commit-{number}", a)) for number, a in enumerate(wanted)]
    decided = plan_admission(snapshot, targets, may_reject=True, now=NOW)
    assert bool(decided.rejections) == (sum(wanted) > sum(room_sizes))


@given(st.lists(st.integers(1, 6), min_size=1, max_size=4), st.data())
def test_split_and_merge_hand_every_slot_over_in_a_full_zone(
    old_amounts: list[int], draw: st.DataObject
) -> None:
    """Slots of one unit: whatever the new cut, nothing is placed anew and nothing is lost."""
    total = sum(old_amounts)
    cuts = sorted(draw.draw(st.sets(st.integers(1, max(1, total - 1)), max_size=3)))
    new_amounts = [b - a for a, b in zip([0, *cuts], [*cuts, total], strict=True) if b > a]
    hosts = [host(1, total, gib(total))]
    slots = [slot(n, "", vcpus=1) for n in range(1, total + 1)]
    rooms = {s.slot_id: SlotRoom(host_ids=(1,), blocked=gib(1)) for s in slots}
    ending, start = [], 0
    for number, amount in enumerate(old_amounts):
        own = [replace(s, commitment_uuid=f"old-{number}") for s in slots[start : start + amount]]
        ending.append(target(None, f"old-{number}", own))
        start += amount
    beginning = [target(state(f"new-{n}", amount)) for n, amount in enumerate(new_amounts)]
    decided = plan(hosts, [*beginning, *ending], may_reject=False, rooms=rooms)
    assert {d.outcome for d in decided.decisions} == {Ruling.ACCEPTED, Ruling.DELETED}
    assert decided.released_slot_ids == ()
    assert decided.block_deltas == {}
    assert len(decided.handovers) == total
