from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capacity.hooks import TrackedPlacement
from commitments.domain.classify import (
    SlotClass,
    TrackedSlot,
    TrackingFacts,
    classify_placement,
    classify_refusal,
    has_usable_slot,
    pick_slot,
    remaining_bytes,
    slots_to_record,
)
from commitments.domain.statuses import CommitmentStatus, ResourceType
from scheduling.quota import CommitmentFact
from scheduling.resources import MIB, ResourceVector

HOST = "host-1"
FREE_BYTES = 16384 * MIB


def vm(memory_mib: int = 4096, **fields: str) -> TrackedPlacement:
    return TrackedPlacement(
        vm_uuid=fields.pop("vm_uuid", "vm-1"),
        project_id="project-1",
        group="group-1",
        zone=fields.pop("zone", ""),
        resources=ResourceVector(memory_bytes=memory_mib * MIB, vcpus=1),
        **fields,
    )


def commitment(
    amount_mib: int, used_mib: int = 0, *, project_id: str = "project-1", **fields: object
) -> CommitmentFact:
    base = CommitmentFact(
        project_id=project_id,
        group="group-1",
        zone="az-1",
        state=CommitmentStatus.CONFIRMED,
        amount_bytes=amount_mib * MIB,
        used_bytes=used_mib * MIB,
    )
    return replace(base, **fields)  # type: ignore[arg-type]  # fields of several types


def slot(
    name: str = "slot-a",
    total_mib: int = 8192,
    allocated_mib: int = 0,
    *,
    host_name: str = HOST,
    project_id: str = "project-1",
    group: str = "group-1",
    vm_uuids: Sequence[str] = (),
) -> TrackedSlot:
    return TrackedSlot(
        slot_id=sum(name.encode()),
        name=name,
        host_name=host_name,
        project_id=project_id,
        group=group,
        memory_bytes=total_mib * MIB,
        allocated_bytes=allocated_mib * MIB,
        vm_uuids=frozenset(vm_uuids),
    )


def facts(
    commitments: Sequence[CommitmentFact] = (), slots: Sequence[TrackedSlot] = ()
) -> TrackingFacts:
    return TrackingFacts(commitments=commitments, slots=slots, free_bytes={HOST: FREE_BYTES})


@pytest.mark.parametrize(
    ("remaining_mib", "picked"),
    [
        pytest.param({}, None, id="none"),
        pytest.param({"a": 0}, None, id="a 0"),
        pytest.param({"a": 8192}, "a", id="a 8192"),
        pytest.param({"large": 8192, "small": 6144}, "small", id="large 8192, small 6144"),
        pytest.param({"slot-b": 6144, "slot-a": 6144}, "slot-a", id="slot-b 6144, slot-a 6144"),
        pytest.param({"a": 2048}, "a", id="a 2048 (overfill)"),
        pytest.param({"partial": 2048, "full": 6144}, "full", id="partial 2048, full 6144"),
        pytest.param({"low": 2048, "high": 3072}, "high", id="low 2048, high 3072"),
        pytest.param({"a": 4096, "b": 0}, "a", id="full slots drop out"),
    ],
)
def test_the_slot_that_covers_most_of_the_vm_is_picked(
    remaining_mib: dict[str, int], picked: str | None
) -> None:
    slots = [slot(name, 8192, 8192 - left) for name, left in remaining_mib.items()]
    for order in permutations(slots):
        chosen = pick_slot(order, 4096 * MIB)
        assert (chosen.name if chosen else None) == picked


def test_a_slot_partly_used_is_picked_with_what_it_has_left() -> None:
    chosen = pick_slot([slot("partial", 8192, 2048)], 4096 * MIB)
    assert chosen is not None
    assert chosen.remaining_bytes == 6144 * MIB


@pytest.mark.parametrize(
    ("total", "used", "left"),
    [(8192, 0, 8192), (8192, 4096, 4096), (8192, 8192, 0), (4096, 8192, 0)],
)
def test_remaining_memory_is_never_negative(total: int, used: int, left: int) -> None:
    assert remaining_bytes(total, used) == left


REFUSALS = [
    pytest.param([], [], SlotClass.NO_CR, id="none"),
    pytest.param([commitment(8192, 8192)], [], SlotClass.CR_EXHAUSTED, id="8192/8192"),
    pytest.param([commitment(8192, 10000)], [], SlotClass.CR_EXHAUSTED, id="8192/10000"),
    pytest.param(
        [commitment(4096, 4096), commitment(4096, 4096)],
        [],
        SlotClass.CR_EXHAUSTED,
        id="4096/4096 + 4096/4096",
    ),
    pytest.param(
        [commitment(8192, 4096)],
        [slot(allocated_mib=8192)],
        SlotClass.SLOT_EXHAUSTED,
        id="8192/4096, slot fully allocated",
    ),
    pytest.param([commitment(8192)], [], SlotClass.SLOT_EXHAUSTED, id="8192/0, no slot"),
    pytest.param(
        [commitment(8192, 4096)],
        [slot(allocated_mib=4096)],
        SlotClass.SLOT_BLOCKED,
        id="8192/4096, slot 8192/4096",
    ),
    pytest.param(
        [commitment(8192, 4096)],
        [slot(allocated_mib=6144)],
        SlotClass.SLOT_BLOCKED,
        id="8192/4096, slot 8192/6144 (overfill)",
    ),
    pytest.param(
        [commitment(8192)],
        [slot(project_id="project-2")],
        SlotClass.SLOT_EXHAUSTED,
        id="slot of another project",
    ),
    pytest.param(
        [commitment(8192, state=CommitmentStatus.PENDING)],
        [slot()],
        SlotClass.NO_CR,
        id="pending only",
    ),
    pytest.param(
        [commitment(8192, project_id="project-2")], [slot()], SlotClass.NO_CR, id="other project"
    ),
    pytest.param(
        [commitment(8192, resource_type=ResourceType.CORES)],
        [slot()],
        SlotClass.NO_CR,
        id="cores do not count",
    ),
    pytest.param(
        [commitment(8192, 8192), commitment(8192)],
        [slot()],
        SlotClass.SLOT_BLOCKED,
        id="room is pooled over commitments",
    ),
    pytest.param(
        [commitment(8192, state=CommitmentStatus.GUARANTEED)],
        [slot()],
        SlotClass.SLOT_BLOCKED,
        id="guaranteed counts",
    ),
]


@pytest.mark.parametrize(("commitments", "slots", "expected"), REFUSALS)
def test_a_refusal_says_why_the_commitment_did_not_help(
    commitments: list[CommitmentFact], slots: list[TrackedSlot], expected: SlotClass
) -> None:
    assert classify_refusal(vm(), [HOST], facts(commitments, slots)) is expected


def test_a_slot_on_a_host_that_was_no_candidate_does_not_count() -> None:
    known = facts([commitment(8192)], [slot()])
    assert classify_refusal(vm(), ["host-2"], known) is SlotClass.SLOT_EXHAUSTED
    assert classify_refusal(vm(), None, known) is SlotClass.SLOT_BLOCKED


def test_a_slot_is_unusable_when_other_slots_hold_the_memory_to_overfill_it() -> None:
    slots = [slot("a", 8192, 6144), slot("b", 8192, project_id="project-2")]
    known = facts([commitment(8192)], slots)
    assert not has_usable_slot(vm(), HOST, known)
    assert has_usable_slot(vm(memory_mib=2048), HOST, known)
    assert classify_refusal(vm(), [HOST], known) is SlotClass.SLOT_EXHAUSTED


def test_an_overused_host_counts_as_without_free_memory() -> None:
    known = TrackingFacts(
        commitments=[commitment(8192)], slots=[slot()], free_bytes={HOST: -FREE_BYTES}
    )
    assert has_usable_slot(vm(memory_mib=0), HOST, known)
    assert not has_usable_slot(vm(memory_mib=1), HOST, known)


PLACEMENTS = [
    pytest.param([], [slot()], SlotClass.NO_CR, id="no active commitment"),
    pytest.param([commitment(8192, 8192)], [slot()], SlotClass.NO_CR, id="used up"),
    pytest.param([commitment(8192)], [slot()], SlotClass.SLOT_USED, id="slot on a candidate"),
    pytest.param([commitment(8192)], [], SlotClass.SLOT_MISSED, id="no slot"),
    pytest.param(
        [commitment(8192)], [slot(allocated_mib=8192)], SlotClass.SLOT_MISSED, id="slot full"
    ),
    pytest.param(
        [commitment(8192)],
        [slot(host_name="host-9")],
        SlotClass.SLOT_MISSED,
        id="slot only on another host",
    ),
    pytest.param(
        [commitment(8192)],
        [slot(group="group-2")],
        SlotClass.SLOT_MISSED,
        id="slot of another group",
    ),
    pytest.param(
        [commitment(8192, state=CommitmentStatus.PENDING)], [slot()], SlotClass.NO_CR, id="pending"
    ),
    pytest.param(
        [commitment(8192)],
        [slot(total_mib=1024)],
        SlotClass.SLOT_USED,
        id="a slot smaller than the vm",
    ),
]


@pytest.mark.parametrize(("commitments", "slots", "expected"), PLACEMENTS)
def test_a_placement_says_whether_it_met_a_slot(
    commitments: list[CommitmentFact], slots: list[TrackedSlot], expected: SlotClass
) -> None:
    assert classify_placement(vm(), [HOST, "host-2"], facts(commitments, slots)) is expected


def test_only_commitments_of_the_requested_zone_count() -> None:
    known = facts([commitment(8192)], [slot()])
    assert classify_placement(vm(zone="az-1"), [HOST], known) is SlotClass.SLOT_USED
    assert classify_placement(vm(zone="az-2"), [HOST], known) is SlotClass.NO_CR
    assert classify_refusal(vm(zone="az-2"), [HOST], known) is SlotClass.NO_CR


@pytest.mark.parametrize(
    ("slots", "recorded"),
    [
        pytest.param([slot("a")], "a", id="ready slot with room on the target"),
        pytest.param([slot("a", vm_uuids=["vm-1"])], None, id="VM already listed"),
        pytest.param(
            [slot("a", vm_uuids=["vm-1"]), slot("b")], None, id="VM listed in another slot"
        ),
        pytest.param([slot("a", host_name="host-2")], None, id="slot only on another host"),
        pytest.param([slot("a", allocated_mib=8192)], None, id="slot full"),
        pytest.param([slot("a", project_id="project-2")], None, id="slot of another project"),
        pytest.param([slot("a", vm_uuids=["vm-2"]), slot("b", 4096)], "b", id="tightest slot"),
    ],
)
def test_a_vm_is_recorded_once_in_a_slot_of_its_own(
    slots: list[TrackedSlot], recorded: str | None
) -> None:
    chosen = slots_to_record(vm(), HOST, facts([commitment(8192)], slots))
    assert [slot.name for slot in chosen] == ([recorded] if recorded else [])


ROOMS = st.lists(
    st.tuples(st.integers(0, 6), st.integers(0, 6), st.sampled_from("abcdef")),
    max_size=5,
    unique_by=lambda room: room[2],
)


@given(rooms=ROOMS, asked=st.integers(1, 6))
def test_picking_a_slot_equals_comparing_every_pair(
    rooms: list[tuple[int, int, str]], asked: int
) -> None:
    slots = [slot(name, total, used) for total, used, name in rooms]
    best: TrackedSlot | None = None
    for one in slots:
        if one.remaining_bytes == 0:
            continue
        if best is None:
            best = one
            continue
        covered, so_far = (min(x.remaining_bytes, asked * MIB) for x in (one, best))
        if (
            covered > so_far
            or (covered == so_far and one.remaining_bytes < best.remaining_bytes)
            or (
                covered == so_far
                and one.remaining_bytes == best.remaining_bytes
                and one.name < best.name
            )
        ):
            best = one
    assert pick_slot(slots, asked * MIB) == best
