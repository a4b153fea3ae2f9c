from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commitments.domain.assignment import (
    CoveredUsage,
    Place,
    SizedVM,
    UsableCommitment,
    assign_in_order,
    commitments_in_order,
)
from scheduling.resources import GIB

T0 = datetime(2026, 3, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)
OLDEST = datetime.min.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class AssignableVM:
    uuid: str
    zone: str
    group: str
    memory_bytes: int
    vcpus: int
    created_at: datetime | None


def vms_in_order(vms: Iterable[AssignableVM]) -> tuple[AssignableVM, ...]:
    return tuple(
        sorted(
            vms,
            key=lambda vm: (
                vm.created_at or OLDEST,
                -vm.memory_bytes,
                vm.uuid,
            ),
        )
    )


def vm(
    uuid: str,
    memory_gib: int,
    *,
    zone: str = "az-a",
    group: str = "g",
    created_at: datetime | None = T0,
    vcpus: int = 1,
) -> AssignableVM:
    return AssignableVM(
        uuid=uuid,
        zone=zone,
        group=group,
        memory_bytes=memory_gib * GIB,
        vcpus=vcpus,
        created_at=created_at,
    )


def memory(
    uuid: str, gib: int, *, zone: str = "az-a", group: str = "g", start: datetime | None = None
) -> UsableCommitment:
    return UsableCommitment(
        uuid=uuid, zone=zone, group=group, is_memory=True, amount=gib * GIB, start_time=start
    )


def cores(uuid: str, amount: int) -> UsableCommitment:
    return UsableCommitment(
        uuid=uuid, zone="az-a", group="g", is_memory=False, amount=amount, start_time=None
    )


def in_turn(*sizes_gib: int) -> list[AssignableVM]:
    return [
        vm(f"vm-{number}", gib, created_at=T0 + number * HOUR)
        for number, gib in enumerate(sizes_gib, 1)
    ]


def assign_vms(
    vms: Iterable[AssignableVM], commitments: Iterable[UsableCommitment]
) -> Mapping[str, CoveredUsage]:
    by_place: defaultdict[Place, list[SizedVM]] = defaultdict(list)
    for one in vms_in_order(vms):
        if one.group:
            by_place[one.zone, one.group].append((one.uuid, one.memory_bytes, one.vcpus))
    return assign_in_order(by_place, commitments)


CASES: dict[str, tuple[list[AssignableVM], list[UsableCommitment], dict[str, tuple[str, ...]]]] = {
    "none": ([], [memory("c1", 4)], {"c1": ()}),
    "1, 1 without commitment": (in_turn(1, 1), [], {}),
    "1 in c1 2": (in_turn(1), [memory("c1", 2)], {"c1": ("vm-1",)}),
    "4 does not fit c1 1": (in_turn(4), [memory("c1", 1)], {"c1": ()}),
    "2, 2, 2 in c1 4": (in_turn(2, 2, 2), [memory("c1", 4)], {"c1": ("vm-1", "vm-2")}),
    "az-a and az-b, commitment in az-a": (
        [vm("vm-a", 1), vm("vm-b", 1, zone="az-b")],
        [memory("c", 2)],
        {"c": ("vm-a",)},
    ),
    "4, 1 in c1 2": (in_turn(4, 1), [memory("c1", 2)], {"c1": ("vm-2",)}),
    "3, 3 in c1 4 older and c2 4": (
        in_turn(3, 3),
        [memory("c2", 4, start=T0 + HOUR), memory("c1", 4, start=T0)],
        {"c1": ("vm-1",), "c2": ("vm-2",)},
    ),
    "flavor in no group": ([vm("vm-1", 1, group="")], [memory("c1", 9, group="")], {"c1": ()}),
}


@pytest.mark.parametrize(("vms", "commitments", "expected"), CASES.values(), ids=list(CASES))
def test_vms_go_to_the_first_commitment_with_enough_left(
    vms: list[AssignableVM],
    commitments: list[UsableCommitment],
    expected: dict[str, tuple[str, ...]],
) -> None:
    covered = assign_vms(vms, commitments)
    assert {uuid: usage.vm_uuids for uuid, usage in covered.items()} == expected


VM_ORDER = {
    "created +2h, 0, +1h": (
        [
            vm("c", 1, created_at=T0 + 2 * HOUR),
            vm("a", 1),
            vm("b", 1, created_at=T0 + HOUR),
        ],
        "abc",
    ),
    "same time, 1, 8, 4 GiB": ([vm("c", 1), vm("a", 8), vm("b", 4)], "abc"),
    "same time and size, c, a, b": ([vm("c", 1), vm("a", 1), vm("b", 1)], "abc"),
    "new large, old small, old large": (
        [vm("c", 8, created_at=T0 + HOUR), vm("b", 1), vm("a", 8)],
        "abc",
    ),
    "unknown time is oldest": ([vm("b", 8), vm("a", 1, created_at=None)], "ab"),
}


@pytest.mark.parametrize(("vms", "expected"), VM_ORDER.values(), ids=list(VM_ORDER))
def test_vms_are_served_oldest_then_largest_first(vms: list[AssignableVM], expected: str) -> None:
    assert "".join(one.uuid for one in vms_in_order(vms)) == expected


COMMITMENT_ORDER = {
    "start t2, t1": ([memory("b", 1, start=T0 + HOUR), memory("a", 1, start=T0)], "ab"),
    "start t1, null": ([memory("b", 1, start=T0), memory("a", 1)], "ab"),
    "same start, 1, 8 GiB": ([memory("b", 1), memory("a", 8)], "ab"),
    "same start and size, c, a, b": ([memory("c", 1), memory("a", 1), memory("b", 1)], "abc"),
}


@pytest.mark.parametrize(
    ("commitments", "expected"), COMMITMENT_ORDER.values(), ids=list(COMMITMENT_ORDER)
)
def test_commitments_are_filled_oldest_then_largest_first(
    commitments: list[UsableCommitment], expected: str
) -> None:
    assert "".join(one.uuid for one in commitments_in_order(commitments)) == expected


def test_vm_is_covered_once_for_memory_and_once_for_cores() -> None:
    covered = assign_vms([vm("vm-1", 2, vcpus=4)], [memory("m", 2), cores("c", 4), cores("d", 8)])
    assert covered["m"].vm_uuids == ("vm-1",)
    assert covered["d"].vm_uuids == ("vm-1",)
    assert covered["c"].vm_uuids == ()
    assert (covered["m"].memory_bytes, covered["m"].vcpus) == (2 * GIB, 4)


places = st.sampled_from(["az-a", "az-b"])
groups = st.sampled_from(["", "g", "h"])
vm_lists = st.lists(
    st.builds(
        lambda gib, zone, group, hours, vcpus: vm(
            "", gib, zone=zone, group=group, vcpus=vcpus, created_at=T0 + hours * HOUR
        ),
        st.integers(0, 5),
        places,
        groups,
        st.integers(0, 2),
        st.integers(1, 4),
    ),
    max_size=8,
)
commitment_lists = st.lists(
    st.builds(
        lambda amount, zone, group, is_memory, start: (amount, zone, group, is_memory, start),
        st.integers(0, 10),
        places,
        groups,
        st.booleans(),
        st.none() | st.just(T0),
    ),
    max_size=5,
)


@given(vm_lists, commitment_lists, st.randoms(use_true_random=False))
def test_assignment_is_first_fit_covers_at_most_once_and_ignores_input_order(
    unnamed: list[AssignableVM],
    amounts: list[tuple[int, str, str, bool, datetime | None]],
    shuffler: object,
) -> None:
    vms = [
        AssignableVM(
            uuid=f"vm-{number}",
            zone=one.zone,
            group=one.group,
            memory_bytes=one.memory_bytes,
            vcpus=one.vcpus,
            created_at=one.created_at,
        )
        for number, one in enumerate(unnamed)
    ]
    commitments = [
        UsableCommitment(
            uuid=f"c-{number}",
            zone=zone,
            group=group,
            is_memory=is_memory,
            amount=amount * GIB if is_memory else amount,
            start_time=start,
        )
        for number, (amount, zone, group, is_memory, start) in enumerate(amounts)
    ]
    covered = assign_vms(vms, commitments)
    assert covered == _oracle(vms, commitments)
    shuffled = list(vms)
    shuffler.shuffle(shuffled)  # type: ignore[attr-defined]  # hypothesis hands over a Random
    assert assign_vms(shuffled, reversed(commitments)) == covered
    by_uuid = {one.uuid: one for one in commitments}
    for is_memory in (True, False):
        of_type = [u.vm_uuids for c, u in covered.items() if by_uuid[c].is_memory is is_memory]
        assigned = list(itertools.chain.from_iterable(of_type))
        assert len(assigned) == len(set(assigned))
    for uuid, usage in covered.items():
        one = by_uuid[uuid]
        assert (usage.memory_bytes if one.is_memory else usage.vcpus) <= one.amount


def _oracle(vms: list[AssignableVM], commitments: list[UsableCommitment]) -> dict[str, object]:
    """The specification read aloud: for each VM the first commitment that still has room."""
    taken: dict[str, list[AssignableVM]] = {one.uuid: [] for one in commitments}
    for is_memory in (True, False):
        for one_vm in vms_in_order(vms):
            for one in commitments_in_order(commitments):
                if one.is_memory is not is_memory or not one_vm.group:
                    continue
                if (one.zone, one.group) != (one_vm.zone, one_vm.group):
                    continue
                sizes = [x.memory_bytes if is_memory else x.vcpus for x in taken[one.uuid]]
                asked = one_vm.memory_bytes if is_memory else one_vm.vcpus
                if sum(sizes) + asked <= one.amount:
                    taken[one.uuid].append(one_vm)
                    break
    return {
        uuid: CoveredUsage(
            vm_uuids=tuple(x.uuid for x in xs),
            memory_bytes=sum(x.memory_bytes for x in xs),
            vcpus=sum(x.vcpus for x in xs),
        )
        for uuid, xs in taken.items()
    }
