from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capacity.guard import eviction
from capacity.guard.amounts import NOTHING, Amounts
from capacity.guard.eviction import (
    EvictableSlot,
    EvictionPlan,
    excess_resources,
    least_cover,
    plan_eviction,
)
from scheduling.resources import GIB


def gib(memory_gib: int, vcpus: int = 0) -> Amounts:
    return Amounts(memory_bytes=memory_gib * GIB, vcpus=vcpus)


def slot(
    slot_id: int,
    memory_gib: int,
    vcpus: int = 1,
    *,
    used_gib: int | None = None,
    used_vcpus: int = 0,
) -> EvictableSlot:
    """Return a slot; ``used_gib`` puts confirmed VMs into it."""
    size = gib(memory_gib, vcpus)
    return EvictableSlot(
        slot_id=slot_id,
        slot=size,
        blocked=(size - gib(used_gib or 0, used_vcpus)).clamped(),
        has_vms=used_gib is not None,
    )


def used(slot_id: int, used_gib: int, used_vcpus: int) -> EvictableSlot:
    return slot(slot_id, 100, 10, used_gib=used_gib, used_vcpus=used_vcpus)


def with_gpus(slot_id: int, memory_gib: int, gpus: int) -> EvictableSlot:
    one = slot(slot_id, memory_gib)
    return replace(one, blocked=one.blocked + Amounts(gpus=gpus))


@pytest.mark.parametrize(
    ("slots", "excess", "evicted", "remaining"),
    [
        pytest.param(
            [slot(1, 512, used_gib=512), slot(2, 512), slot(3, 128)], gib(100), [3], NOTHING,
            id="allocated 512, empty 512, empty 128",
        ),
        pytest.param(
            [slot(1, 512, used_gib=480), slot(2, 512, used_gib=256), slot(3, 512, used_gib=10)],
            gib(32), [3], NOTHING, id="512 with 480 / 256 / 10 used",
        ),
        pytest.param([], gib(8), [], gib(8), id="only failover"),
        pytest.param(
            [slot(1, 512), slot(2, 512), slot(3, 512)], gib(512), [1], NOTHING, id="3 x 512 on 1024"
        ),
        pytest.param([slot(1, 512)], NOTHING, [], NOTHING, id="violation gone"),
        pytest.param(
            [slot(1, 5), slot(2, 6), slot(3, 20)], gib(10), [1, 2], NOTHING,
            id="two small ones take less memory than one that clears alone",
        ),
        pytest.param(
            [slot(1, 4, 1), slot(2, 4, 4), slot(3, 8, 4)], gib(4, 4), [2], NOTHING,
            id="one slot clears both resources",
        ),
        pytest.param(
            [slot(1, 4, 1), slot(2, 1, 4)], gib(4, 4), [1, 2], NOTHING,
            id="each resource needs its own slot",
        ),
        pytest.param(
            [slot(1, 4, used_gib=0), slot(2, 400)], gib(4), [2], NOTHING,
            id="a slot with VMs stays while an empty one suffices",
        ),
        pytest.param(
            [slot(1, 8, used_gib=1), slot(2, 4)], gib(6), [1], NOTHING,
            id="a slot with VMs goes when the empty ones do not suffice, and alone if that does",
        ),
        pytest.param(
            [slot(1, 8), slot(2, 4, used_gib=1)], gib(20), [1, 2], gib(9),
            id="what cannot be cleared is cleared as far as slots go",
        ),
        pytest.param(
            [slot(1, 8, 1), slot(2, 16, 0)], gib(8, 5), [1], gib(0, 4),
            id="a resource that cannot be cleared takes no more than what helps",
        ),
        pytest.param(
            [slot(1, 8, used_gib=8, used_vcpus=1)], gib(8), [], gib(8),
            id="a full slot gives nothing back and stays",
        ),
        pytest.param(
            [slot(1, 4), with_gpus(2, 64, 1), with_gpus(3, 32, 1)], Amounts(gpus=1), [3], NOTHING,
            id="a GPU is cleared by the smallest slot that has one",
        ),
        pytest.param(
            [with_gpus(1, 8, 1), with_gpus(2, 64, 2)], Amounts(gpus=2), [2], NOTHING,
            id="and by a large one where the small one has too few, without that",
        ),
        pytest.param(
            [slot(1, 4), with_gpus(2, 8, 1), slot(3, 4)], gib(6) + Amounts(gpus=1), [2], NOTHING,
            id="a slot with a GPU clears memory as well",
        ),
        pytest.param(
            [slot(1, 4), slot(2, 8)], Amounts(network_bps=1, disk_io_bps=2, gpus=3), [],
            Amounts(network_bps=1, disk_io_bps=2, gpus=3), id="what no slot has no slot gives back",
        ),
    ],
)  # fmt: skip
def test_a_set_of_victims_clears_the_host_in_one_go(
    slots: list[EvictableSlot],
    excess: Amounts,
    evicted: list[int],
    remaining: Amounts,
) -> None:
    plan = plan_eviction(slots, excess)

    assert list(plan.slot_ids) == evicted
    assert plan.remaining == remaining
    assert plan.clears == (remaining == NOTHING)


def test_two_hundred_gib_with_ten_full_and_ten_empty_slots_are_cleared_exactly() -> None:
    slots = [slot(size, size, used_gib=size, used_vcpus=1) for size in range(10, 20)]
    slots += [slot(size, size) for size in range(20, 30)]
    taken = sum(range(10, 30))

    plan = plan_eviction(slots, gib(taken - 200))

    assert sum(plan.slot_ids) == taken - 200
    assert min(plan.slot_ids) >= 20
    assert plan.clears


@pytest.mark.parametrize(
    ("free", "excess"),
    [
        (gib(1, 1), NOTHING),
        (gib(0, 0), NOTHING),
        (gib(-512, 3), gib(512)),
        (gib(5, -2), gib(0, 2)),
        (gib(-1024, -384), gib(1024, 384)),
        (Amounts(network_bps=-3, disk_io_bps=4, gpus=-1), Amounts(network_bps=3, gpus=1)),
    ],
)
def test_excess_is_what_is_missing(free: Amounts, excess: Amounts) -> None:
    assert excess_resources(free) == excess


small = st.integers(0, 3)
vectors = st.builds(
    Amounts,
    memory_bytes=st.integers(0, 9),
    vcpus=st.integers(0, 5),
    network_bps=small,
    disk_io_bps=small,
    gpus=small,
)


@st.composite
def slot_lists(draw: st.DrawFn, max_size: int = 9) -> list[EvictableSlot]:
    slots = []
    for number in range(draw(st.integers(0, max_size))):
        size = draw(vectors)
        has_vms = draw(st.booleans())
        given_back = draw(vectors) if has_vms else size  # more than its size: it is overfilled
        slots.append(EvictableSlot(slot_id=number, slot=size, blocked=given_back, has_vms=has_vms))
    return slots


def freed(slots: Iterable[EvictableSlot]) -> Amounts:
    return sum((one.blocked for one in slots), NOTHING)


def cost(slots: Sequence[EvictableSlot]) -> tuple[int, int, int]:
    return (
        sum(one.slot.memory_bytes for one in slots),
        sum(one.used_memory_bytes for one in slots),
        len(slots),
    )


def subsets(slots: Sequence[EvictableSlot]) -> Iterable[tuple[EvictableSlot, ...]]:
    for count in range(len(slots) + 1):
        yield from combinations(slots, count)


def cheapest(slots: Sequence[EvictableSlot], goal: Amounts) -> tuple[int, int, int]:
    return min(cost(chosen) for chosen in subsets(slots) if goal.fits_into(freed(chosen)))


@given(slot_lists(), vectors)
def test_a_cover_is_as_cheap_as_the_best_of_all_subsets(
    slots: list[EvictableSlot], wanted: Amounts
) -> None:
    reachable = freed(slots)
    goal = wanted - (wanted - reachable).clamped()

    cover = least_cover(slots, goal)

    assert goal.fits_into(freed(cover))
    assert len({one.slot_id for one in cover}) == len(cover)
    assert cost(cover) == cheapest(slots, goal)


@given(slot_lists(), vectors)
def test_a_plan_is_the_best_of_all_plans(slots: list[EvictableSlot], excess: Amounts) -> None:
    plan = plan_eviction(slots, excess)

    chosen = [one for one in slots if one.slot_id in plan.slot_ids]
    reach = freed(slots)
    goal = excess - (excess - reach).clamped()
    empty = [one for one in slots if not one.has_vms]
    with_vms = [one for one in slots if one.has_vms]
    assert plan.freed == freed(chosen)
    assert plan.remaining == (excess - reach).clamped()
    assert cost([one for one in chosen if one.has_vms]) == cheapest(
        with_vms, (goal - freed(empty)).clamped()
    )
    assert cost([one for one in chosen if not one.has_vms]) == cheapest(
        empty, (goal - freed([one for one in chosen if one.has_vms])).clamped()
    )
    for one in chosen:
        assert not goal.fits_into(plan.freed - one.blocked), "no slot goes for nothing"


@given(slot_lists(), vectors, st.randoms())
def test_the_order_of_slots_does_not_matter(
    slots: list[EvictableSlot], excess: Amounts, random: object
) -> None:
    shuffled = list(slots)
    random.shuffle(shuffled)  # type: ignore[attr-defined]  # hypothesis gives a random.Random

    assert plan_eviction(shuffled, excess) == plan_eviction(slots, excess)


@given(slot_lists(), vectors)
def test_without_any_search_the_goal_is_still_reached(
    slots: list[EvictableSlot], wanted: Amounts
) -> None:
    goal = wanted - (wanted - freed(slots)).clamped()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(eviction, "_SEARCH_LIMIT", 0)
        patch.setattr(eviction, "_CLASS_LIMIT", 2)
        cover = least_cover(slots, goal)

    assert goal.fits_into(freed(cover))


def test_hundreds_of_slots_are_decided() -> None:
    slots = [slot(number, 3 + number % 37, 1 + number % 5) for number in range(400)]

    plan = plan_eviction(slots, gib(1000, 90))

    assert plan.clears
    assert isinstance(plan, EvictionPlan)
    assert plan.freed.memory_bytes <= 1040 * GIB
