"""The best use of hosts, against every way there is."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from capacity.figures import packing as packing_module
from capacity.figures.group_packing import GroupPacking, HeldShare, packed_shares
from capacity.figures.packing import Packing, SlotSize

sizes = st.lists(
    st.builds(SlotSize, st.integers(1, 9), st.integers(1, 5)), min_size=1, max_size=4, unique=True
)
hosts = st.lists(st.tuples(st.integers(-2, 30), st.integers(-1, 12)), min_size=1, max_size=5)


def best_of_all(flavors: Sequence[SlotSize], memory: int, vcpus: int) -> tuple[int, int]:
    """Try every multiset of slots: the most memory, then the fewest vCPUs."""

    @cache
    def best(memory: int, vcpus: int) -> tuple[int, int]:
        options = [(0, 0)]
        for size in flavors:
            if size.memory_bytes <= memory and size.vcpus <= vcpus:
                taken, used = best(memory - size.memory_bytes, vcpus - size.vcpus)
                options.append((taken + size.memory_bytes, used - size.vcpus))
        return max(options)

    taken, used = best(memory, vcpus)
    return taken, -used


def columns(rooms: Sequence[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:
    pairs = np.array(rooms, dtype=np.int64).reshape(-1, 2)
    return pairs[:, 0].copy(), pairs[:, 1].copy()


@given(flavors=sizes, rooms=hosts)
def test_most_is_the_best_of_every_way_to_fill_a_host(
    flavors: list[SlotSize], rooms: list[tuple[int, int]]
) -> None:
    packing = Packing(flavors, 30)
    most = packing.most(*columns(rooms))
    for position, (memory, vcpus) in enumerate(rooms):
        found = int(most.memory_bytes[position]), int(most.vcpus[position])
        assert found == best_of_all(flavors, memory, vcpus)
        slots = packing.slots(found[0])
        assert set(slots) <= set(flavors)
        assert sum(slot.memory_bytes for slot in slots) == found[0]
        assert sum(slot.vcpus for slot in slots) == found[1]


@given(flavors=sizes, memory=st.integers(0, 30), vcpus=st.integers(0, 12), limit=st.integers(2, 12))
def test_a_table_that_would_be_too_large_finds_less_but_never_more(
    flavors: list[SlotSize], memory: int, vcpus: int, limit: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packing_module, "MAX_CELLS", limit)
        packing = Packing(flavors, 30)
    grown = packing.most(*columns([(memory, vcpus), (memory + 1, vcpus), (memory, vcpus + 1)]))
    found = grown.memory_bytes.tolist()
    smallest = min(flavors)
    alone = min(memory // smallest.memory_bytes, vcpus // smallest.vcpus) * smallest.memory_bytes
    assert alone <= found[0] <= best_of_all(flavors, memory, vcpus)[0]
    assert found[0] <= min(found[1:])
    assert sum(slot.memory_bytes for slot in packing.slots(found[0])) == found[0]


def test_flavors_that_lack_a_little_memory_go_together() -> None:
    mib = 2**20
    odd = [SlotSize((gib * 1024 - 16) * mib, vcpus) for gib, vcpus in ((16, 2), (8, 2), (2, 1))]
    most = Packing(odd, 2**41).most(*columns([(2**41, 256), (2**41, 3)]))
    assert most.memory_bytes.tolist()[1] == odd[0].memory_bytes + odd[2].memory_bytes
    assert most.memory_bytes.tolist()[0] == 128 * odd[0].memory_bytes


def test_larger_slots_come_first_and_are_preferred() -> None:
    same_ratio = Packing([SlotSize(4, 4), SlotSize(2, 2), SlotSize(1, 1)], 7)
    assert same_ratio.slots(7) == (SlotSize(4, 4), SlotSize(2, 2), SlotSize(1, 1))


def test_without_a_size_nothing_is_held() -> None:
    assert Packing([], 8).most(*columns([(8, 8)])).memory_bytes.tolist() == [0]
    none = np.zeros(1, dtype=np.bool_)
    group = GroupPacking([SlotSize(1, 1), SlotSize(0, 1), SlotSize(1, 0)], [none, ~none, ~none], 8)
    assert group.most(*columns([(8, 8)])).memory_bytes.tolist() == [0]
    assert GroupPacking([], [], 8).most(*columns([])).memory_bytes.tolist() == []


@given(
    groups=st.lists(st.tuples(sizes, st.integers(1, 31)), min_size=1, max_size=3),
    rooms=st.lists(st.tuples(st.integers(0, 30), st.integers(0, 12)), min_size=5, max_size=5),
    own=st.integers(0, 3),
)
def test_shares_grow_out_of_what_nobody_has(
    groups: list[tuple[list[SlotSize], int]], rooms: list[tuple[int, int]], own: int
) -> None:
    memory, vcpus = columns(rooms)
    left_memory, left_vcpus = memory.copy(), vcpus.copy()
    shares = {}
    for number, (flavors, letters) in enumerate(groups):
        admitted = np.array([letters >> host & 1 for host in range(5)], dtype=np.bool_)
        smallest = min(flavors)
        fits = np.minimum(left_memory // smallest.memory_bytes, left_vcpus // smallest.vcpus)
        slots = np.where(admitted, np.minimum(fits, own), 0)
        shares[f"g{number}"] = HeldShare(
            memory_bytes=slots * smallest.memory_bytes,
            vcpus=slots * smallest.vcpus,
            packing=GroupPacking(flavors, [admitted] * len(flavors), 30),
        )
        left_memory -= slots * smallest.memory_bytes
        left_vcpus -= slots * smallest.vcpus
    packed = packed_shares(shares, left_memory, left_vcpus)
    assert (left_memory >= 0).all()
    assert (left_vcpus >= 0).all()
    assert (left_memory + sum(one.memory_bytes for one in packed.values()) == memory).all()
    assert (left_vcpus + sum(one.vcpus for one in packed.values()) == vcpus).all()
    for number, (flavors, letters) in enumerate(groups):
        held, before = packed[f"g{number}"], shares[f"g{number}"]
        assert (held.memory_bytes >= before.memory_bytes).all()
        for host in range(5):
            offered = held.memory_bytes[host] + left_memory[host]
            room = int(offered), int(held.vcpus[host] + left_vcpus[host])
            if letters >> host & 1:
                assert held.memory_bytes[host] <= best_of_all(flavors, *room)[0]
            else:
                assert held.memory_bytes[host] == before.memory_bytes[host] == 0
    if len(groups) == 1:
        (flavors, letters), held = groups[0], packed["g0"]
        for host, room in enumerate(rooms):
            expected = best_of_all(flavors, *room)[0] if letters >> host & 1 else 0
            assert held.memory_bytes[host] == expected
